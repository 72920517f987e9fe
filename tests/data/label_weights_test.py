"""Label weights, from a source to a batch."""

import numpy as np
import pytest

from tests.messages import refused
from vit_jax.data import label_index, streams
from vit_jax.data.in_memory import InMemory
from vit_jax.data.label_index import balanced, first_of_each_class
from vit_jax.data.mixtures import MixtureSource
from vit_jax.data.pipeline import eval_batches, train_batches
from vit_jax.data.source import Example

# Examples 0 to 7: two labels with weights, one label, or labels without weights.
LABELED = [((1, 2), (0.5, 0.25)), ((3,), (0.125,)), ((4, 5), ()), ((), ())] * 2
EXPECTED = np.array([[0.5, 0.25], [0.125, 0], [1, 1], [0, 0]] * 2, np.float32)


@pytest.fixture
def source(list_source, encode):
    """A source of eight examples."""
    image = encode(np.zeros((4, 4), np.uint8))
    examples = list_source([Example(image, labels, weights=weights) for labels, weights in LABELED])
    examples.weighted = True
    return examples


def every(source, **changed):
    """All examples in one batch, plus one empty slot."""
    arguments = {"batch_size": 9, "on_bad_image": "fail", "max_image_pixels": 10**6, "threads": 1}
    with eval_batches(source, "decode|resize(4)", **arguments | changed) as batches:
        return next(batches)


def test_weights_stand_where_the_labels_do(source):
    source.examples[4] = source.examples[4]._replace(image=b"junk")
    batch = every(source, on_bad_image="skip")
    label_weights, expected = batch["label_weights"], EXPECTED.copy()
    expected[4] = 0
    assert label_weights.dtype == np.float32
    np.testing.assert_array_equal(label_weights, [*expected, [0, 0]])
    np.testing.assert_array_equal(label_weights > 0, batch["labels"] >= 0)


def test_a_source_without_weights_sends_none(source):
    source.weighted = False
    assert "label_weights" not in every(source)


def test_a_component_without_weights_has_those_of_1(source, list_source):
    plain = list_source([example._replace(weights=()) for example in source.examples])
    joined = MixtureSource({"a": plain, "b": source})
    assert joined.weighted and not MixtureSource({"a": plain}).weighted
    batch = every(joined, batch_size=16)
    ones = (batch["labels"][:8] >= 0).astype(np.float32)
    np.testing.assert_array_equal(batch["label_weights"], [*ones, *EXPECTED])


def test_parts_and_caches_keep_the_weights(source):
    """Weights affect neither the subset by class nor how often a class comes."""
    whole = label_index.collect([labels for labels, _ in LABELED])
    for part in (
        streams.first_examples(source, 5),
        first_of_each_class(source, 1, whole),
        InMemory(source, limit_bytes=10**6),
    ):
        for _ in range(2):
            batch = every(part)
            there = batch["index"] >= 0
            of_source = getattr(part, "select", lambda i: i)(batch["index"][there])
            np.testing.assert_array_equal(batch["label_weights"][there], EXPECTED[of_source])
    by_class = label_index.by_class(whole, 10, describe=str)
    _, examples = balanced(by_class, seed=0)(np.arange(5 * 20))
    assert (np.bincount(examples, minlength=8)[[1, 5]] == 10).all()


def test_weights_of_a_step_are_those_of_its_examples(source):
    def steps(start, count):
        with train_batches(
            source, "decode|resize(4)", batch_size=6, seed=0, start_step=start, on_bad_image="fail",
            max_image_pixels=10**6, threads=2,
        ) as batches:  # fmt: skip
            return [next(batches) for _ in range(count)]

    straight, resumed = steps(0, 5), steps(3, 2)
    for batch in straight:
        np.testing.assert_array_equal(batch["label_weights"], EXPECTED[batch["index"]])
    for one, other in zip(straight[3:], resumed, strict=True):
        np.testing.assert_array_equal(one["label_weights"], other["label_weights"])


@pytest.mark.parametrize("weights", [(1.5, 1.0), (0.5, -0.1), (float("nan"), 1.0)])
def test_weights_outside_of_0_to_1_are_refused(source, weights):
    source.examples[4] = source.examples[4]._replace(weights=weights)
    with refused("example 4", "[0, 1]", "input.label_weights"):
        every(source, on_bad_image="skip")


def test_a_weight_for_each_label_or_none(source):
    source.examples[4] = source.examples[4]._replace(weights=(0.5,))
    with refused("input.label_weights"):
        every(source)
