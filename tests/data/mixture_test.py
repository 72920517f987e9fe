import numpy as np
import pytest

from tests.messages import refused
from vit_jax.data.mixtures import MixtureSource, mixed, quotas
from vit_jax.data.source import Example
from vit_jax.data.sources.table import Synthetic

SIZES = {"a": 7, "b": 100, "c": 30}
WEIGHTS = {"a": 1, "b": 6, "c": 3}


@pytest.fixture
def joined(list_source):
    parts = {
        name: list_source([Example(f"{name}{i}".encode(), (i % 10,)) for i in range(size)])
        for name, size in SIZES.items()
    }
    return MixtureSource(dict(reversed(parts.items())))


def names_at(source, examples):
    return np.array([example.image.decode()[0] for example in source.read(examples)])


def test_examples_of_all_components(joined):
    expected = [f"{name}{i}".encode() for name, size in SIZES.items() for i in range(size)]
    order = np.random.default_rng(0).permutation(137)
    assert [e.image for e in joined.read(order)] == [expected[i] for i in order]
    assert joined.num_examples == 137
    assert joined.describe(8) == "b: example 1"


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ({"a": 1.0, "b": 6.0, "c": 3.0}, [1, 6, 3]),
        ({"a": 2.0}, [2]),
        ({"a": 0.2, "b": 0.5, "c": 0.3}, [200, 500, 300]),
        ({"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}, [334, 333, 333]),
        ({"a": 600.0, "b": 1400.0}, [300, 700]),
    ],
)
def test_quotas(weights, expected):
    assert list(quotas(weights).values()) == expected


@pytest.mark.parametrize("weight", [0.0, 1e-4])
def test_a_component_that_would_never_come_is_refused(weight):
    with refused("input.mixture.b.weight"):
        quotas({"a": 1.0, "b": weight})


def test_shares_are_exact_over_every_block(joined):
    stream = mixed(joined.sizes, WEIGHTS, seed=0)
    _, examples = stream(np.arange(10 * 200))
    blocks = names_at(joined, examples).reshape(200, 10)
    np.testing.assert_array_equal(np.sort(blocks), [list("abbbbbbccc")] * 200)
    assert len(np.unique(blocks, axis=0)) > 150  # one of 840 orders


def test_each_component_has_its_own_epochs(joined):
    epochs, examples = mixed(joined.sizes, WEIGHTS, seed=0)(np.arange(10 * 350))
    names = names_at(joined, examples)
    for name, size in SIZES.items():
        own, epochs_of_own = examples[names == name], epochs[names == name]
        for epoch in range(len(own) // size):
            in_epoch = own[epochs_of_own == epoch]
            assert len(in_epoch) == len(set(in_epoch)) == size
        first, second = (own[epochs_of_own == epoch] for epoch in (0, 1))
        assert len(second) < size or (first != second).any()


def test_positions_can_be_asked_for_in_any_order(joined):
    stream = mixed(joined.sizes, WEIGHTS, seed=0)
    _, examples = stream(np.arange(1000))
    order = np.random.default_rng(0).permutation(1000)
    np.testing.assert_array_equal(stream(order)[1], examples[order])
    _, other = mixed(joined.sizes, WEIGHTS, seed=1)(np.arange(1000))
    assert (examples != other).mean() > 0.5


def test_all_components_have_the_same_classes(list_source):
    parts = [list_source([Example(b"", (0,))]) for _ in range(3)]
    parts[2].num_classes = 11
    with refused("input.mixture"):
        MixtureSource(dict(zip("abc", parts, strict=True)))
    parts[2].num_classes = 10
    parts[1].class_names = tuple("0123456789")
    assert MixtureSource(dict(zip("abc", parts, strict=True))).class_names == parts[1].class_names
    parts[2].class_names = tuple("9876543210")
    with refused("input.mixture"):
        MixtureSource(dict(zip("abc", parts, strict=True)))


def test_classes_are_known_by_their_wordnet_ids(list_source):
    parts = [list_source([Example(b"", (0,))]) for _ in range(2)]
    parts[0].num_classes = parts[1].num_classes = 2
    parts[0].class_names = ("n01440764", "n01443537")
    parts[1].class_names = ("n01440764 tench", "n01443537 goldfish")
    assert MixtureSource(dict(zip("ab", parts, strict=True))).num_classes == 2
    parts[1].class_names = ("n01443537 goldfish", "n01440764 tench")
    with refused("input.mixture"):
        MixtureSource(dict(zip("ab", parts, strict=True)))


def test_the_fingerprint_is_that_of_all_components():
    def of(**sizes):
        return MixtureSource(
            {name: Synthetic(size, 3, (8, 8)) for name, size in sizes.items()}
        ).fingerprint

    assert len({of(a=5), of(a=5, b=6), of(a=5, b=7), of(a=6, b=5)}) == 4
    assert of(a=5, b=6) == of(b=6, a=5)


def test_the_order_never_changes(joined):
    """Resumed runs depend on these numbers."""
    _, examples = mixed(joined.sizes, WEIGHTS, seed=0)(np.arange(8) + 10**9)
    assert examples.tolist() == [6, 113, 98, 35, 50, 38, 134, 58]
