import numpy as np
import pytest

from tests.messages import refused
from vit_jax.data import label_index, streams
from vit_jax.data.source import Example, Request, select_examples
from vit_jax.data.sources.table import Digits, Synthetic


@pytest.fixture
def hundred(list_source):
    return list_source([Example(b"%d" % i, (i % 10,)) for i in range(100)])


def images(source):
    return [example.image for example in source.read(np.arange(source.num_examples))]


@pytest.mark.parametrize(
    ("fraction", "examples", "expected"),
    [(None, None, None), (0.01, None, 1), (0.1, None, 10), (1.0, None, 100), (None, 7, 7)],
)
def test_sizes(fraction, examples, expected):
    assert streams.subset_size(100, fraction=fraction, examples=examples) == expected


@pytest.mark.parametrize(
    ("fraction", "examples", "field"),
    [
        (0.001, None, "input.subset_fraction=0.001"),
        (1.5, None, "input.subset_fraction=1.5"),
        (None, 101, "input.subset_examples=101"),
    ],
)
def test_impossible_sizes_are_refused(fraction, examples, field):
    with refused(field):
        streams.subset_size(100, fraction=fraction, examples=examples)


def test_smaller_subsets_are_parts_of_larger_ones(hundred):
    largest = images(streams.first_examples(hundred, 100))
    assert sorted(largest) == sorted(images(hundred))
    for size in (1, 10, 99):
        assert images(streams.first_examples(hundred, size)) == largest[:size]


def test_subsets_hold_all_parts_of_the_split(hundred):
    numbers = np.array([int(image) for image in images(streams.first_examples(hundred, 50))])
    assert 15 < np.sum(numbers < 50) < 35  # 4 standard deviations of a hypergeometric draw: 10


def test_examples_of_each_class(list_source):
    """Class c of ten has c + 1 examples; every fifth example also has class 0."""
    labels = [(c,) if i % 5 else (c, 0) for c in range(10) for i in range(c + 1)]
    source = list_source([Example(b"%d" % i, some) for i, some in enumerate(labels)])
    index = label_index.collect(labels)
    before = set()
    for number in (1, 3, 100):
        part = label_index.first_of_each_class(source, number, index)
        examples = part.read(np.arange(part.num_examples))
        for c in range(10):
            there = sum(c in example.labels for example in examples)
            assert there >= min(number, sum(c in some for some in labels))
        now = {example.image for example in examples}
        assert before < now and len(now) == len(examples) <= 10 * number
        before = now
    assert part.num_examples == source.num_examples


def test_classes_of_one_label_have_exactly_that_many():
    digits = Digits(Request("train"))
    part = label_index.first_of_each_class(digits, 10, label_index.find(digits))
    labels = [example.labels[0] for example in part.read(np.arange(part.num_examples))]
    np.testing.assert_array_equal(np.bincount(labels), [10] * 10)
    other = label_index.first_of_each_class(digits, 11, label_index.find(digits))
    assert len({digits.fingerprint, part.fingerprint, other.fingerprint}) == 3


def test_the_order_never_changes():
    """Every published subset depends on these numbers."""
    ten = streams.first_examples(Synthetic(1000, 10, (8, 8)), 10)
    assert ten.select(np.arange(5)).tolist() == [250, 462, 350, 183, 606]


def test_fingerprints_tell_subsets_apart(hundred):
    sources = [streams.first_examples(hundred, 10), streams.first_examples(hundred, 11)]
    sources += [select_examples(hundred, np.arange(3)), select_examples(hundred, np.arange(1, 4))]
    assert len({source.fingerprint for source in (hundred, *sources)}) == 5
