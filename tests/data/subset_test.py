from collections.abc import Callable, Sequence

import numpy as np
import pytest

from vit_jax.core.errors import UserError
from vit_jax.data import subset
from vit_jax.data.chosen import Chosen, listed
from vit_jax.data.example import Example, Source
from vit_jax.data.synthetic import Synthetic

MakeSource = Callable[[Sequence[Example]], Source]


@pytest.fixture
def hundred(list_source: MakeSource) -> Source:
    return list_source([Example(b"%d" % i, (i % 10,)) for i in range(100)])


def images(source: Source) -> list[bytes]:
    return [example.image for example in source.read(np.arange(source.num_examples))]


@pytest.mark.parametrize(
    ("fraction", "examples", "expected"),
    [(None, None, 100), (0.01, None, 1), (0.1, None, 10), (1.0, None, 100), (None, 7, 7)],
)
def test_sizes(fraction: float | None, examples: int | None, expected: int) -> None:
    assert subset.size(100, fraction=fraction, examples=examples) == expected


@pytest.mark.parametrize(
    ("fraction", "examples", "message"),
    [
        (0.001, None, r"input.subset_fraction=0.001 means 0 of the 100 examples"),
        (1.5, None, r"input.subset_fraction=1.5 means 150 of the 100 examples"),
        (None, 101, r"input.subset_examples=101 means 101 of the 100 examples"),
    ],
)
def test_sizes_that_cannot_be(fraction: float | None, examples: int | None, message: str) -> None:
    with pytest.raises(UserError, match=message):
        subset.size(100, fraction=fraction, examples=examples)


def test_smaller_subsets_are_parts_of_larger_ones(hundred: Source) -> None:
    largest = images(subset.first(hundred, 100))
    assert sorted(largest) == sorted(images(hundred))
    for size in (1, 10, 99):
        assert images(subset.first(hundred, size)) == largest[:size]


def test_subsets_hold_all_parts_of_the_split(hundred: Source) -> None:
    numbers = np.array([int(image) for image in images(subset.first(hundred, 50))])
    assert 15 < np.sum(numbers < 50) < 35  # 4 standard deviations of a hypergeometric draw: 10


def test_the_order_never_changes() -> None:
    """Every published subset depends on these numbers."""
    ten = subset.first(Synthetic(1000, 10, (8, 8)), 10)
    assert ten.choose(np.arange(5)).tolist() == [250, 462, 350, 183, 606]


def test_describes_the_example_of_the_whole(hundred: Source) -> None:
    part = subset.first(hundred, 10)
    assert part.describe(3) == f"example {part.choose(np.arange(4))[3]}"


def test_fingerprints_tell_subsets_apart(hundred: Source) -> None:
    sources: list[Chosen] = [subset.first(hundred, 10), subset.first(hundred, 11)]
    sources += [listed(hundred, np.arange(3)), listed(hundred, np.arange(1, 4))]
    assert len({source.fingerprint for source in (hundred, *sources)}) == 5


def test_300_million_examples_take_no_memory() -> None:
    part = subset.first(Synthetic(303_000_000, 18_291, (8, 8)), 90_000_000)
    chosen = part.choose(np.array([0, 9_000_000, 89_999_999]))
    assert len(set(chosen)) == 3 and chosen.max() < 303_000_000
