"""Images and labels that are bad, and sources that fail, in the pipeline."""

import numpy as np
import pytest

from tests.data.pipeline_test import evaluate, rows_of, take, train
from tests.messages import refused
from vit_jax.core.errors import UserError
from vit_jax.core.schema import entry_points
from vit_jax.data.host_tf import tf
from vit_jax.data.ops import table as ops
from vit_jax.data.source import Example

REASONS = {17: "Invalid PNG", 18: "the file is empty", 33: "1001 x 1000 pixels exceed"}


@pytest.fixture
def with_bad_images(few, encode):
    source = few(40)
    whole = source.examples[17].image
    source.examples[17] = Example(whole[: len(whole) // 2], (7,))
    source.examples[18] = Example(b"", (8,))
    source.examples[33] = Example(encode(np.zeros((1001, 1000), np.uint8)), (3,))
    return source


def test_skipped_images_keep_their_slots(with_bad_images):
    batches = evaluate(with_bad_images, on_bad_image="skip")
    index, weight, labels, image = (
        np.concatenate(arrays)
        for arrays in zip(
            *((b["index"], b["weight"], b["labels"], b["image"]) for b in batches), strict=True
        )
    )
    np.testing.assert_array_equal(index[:40], np.arange(40))
    np.testing.assert_array_equal(np.flatnonzero(weight[:40] == 0), [17, 18, 33])
    assert (labels[[17, 18, 33]] == -1).all()
    assert (image[[17, 18, 33]] == 0).all()
    assert batches.num_bad == 3
    for index, reason in REASONS.items():
        assert batches.bad_image(index).startswith(f"example {index}: {reason}")


def test_a_bad_image_changes_no_other_slot_on_any_host(digits, list_source):
    examples = digits.read(np.arange(100))
    expected = take(train(list_source(examples)), 10)
    examples[42] = Example(b"junk", (2,))
    source = list_source(examples)
    parts = [
        take(train(source, on_bad_image="skip", rows=rows_of(h, 2), start_step=2), 8)
        for h in range(2)
    ]
    for step, batch in enumerate(expected[2:]):
        joined = {k: np.concatenate([part[step][k] for part in parts]) for k in batch}
        bad = batch["index"] == 42
        np.testing.assert_array_equal(joined["weight"], ~bad)
        np.testing.assert_array_equal(joined["index"], batch["index"])
        np.testing.assert_array_equal(joined["image"][~bad], batch["image"][~bad])


@pytest.mark.parametrize(("index", "reason"), REASONS.items())
def test_failing_names_the_image(with_bad_images, index, reason):
    good = with_bad_images.examples[0]
    with_bad_images.examples = [
        example if i == index else good for i, example in enumerate(with_bad_images.examples)
    ]
    batches = evaluate(with_bad_images)
    seen = 0
    with refused(index, reason) as error:
        for batch in batches:
            seen += len(batch["index"])
    assert seen == index // 16 * 16
    assert 'input.on_bad_image="skip"' in str(error.value)
    assert list(batches) == []


def test_thin_images_are_bad_images(few, encode):
    source = few(20)
    source.examples[3] = Example(encode(np.zeros((1, 30_000), np.uint8)), (3,))
    preprocess = "decode|resize_small(256)|central_crop(16)"
    with refused("input.max_image_pixels"):
        next(evaluate(source, preprocess))
    (batch,) = take(evaluate(source, preprocess, on_bad_image="skip"), 1)
    np.testing.assert_array_equal(np.flatnonzero(batch["weight"] == 0), [3])


@pytest.mark.parametrize("on_bad_image", ["fail", "skip"])
@pytest.mark.parametrize("exhausts", ["always", "once"])
def test_running_out_of_memory_is_not_a_bad_image(few, monkeypatch, on_bad_image, exhausts):
    """Even after a bad image, from which on errors are examined one by one."""
    source = few(20)
    source.examples[2] = Example(b"junk", (2,))

    def shade_17_exhausts():
        def apply(pixels, seed):
            if exhausts == "once" and tf.executing_eagerly():
                return pixels
            shade = tf.cast(pixels[0, 0, 0], tf.int64)
            huge = tf.zeros(tf.where(shade == 17, tf.constant(2**60, tf.int64), 1), tf.uint8)
            return pixels + huge[:1]

        return ops.Op(apply, output_size=lambda size: size)

    monkeypatch.setitem(entry_points._added, ("ops", "exhaust"), shade_17_exhausts)
    if on_bad_image == "fail":
        source.examples[2] = source.examples[1]
    with pytest.raises((tf.errors.ResourceExhaustedError, MemoryError)):
        list(evaluate(source, "decode|resize(4)|exhaust", on_bad_image=on_bad_image))


@pytest.mark.parametrize(("label", "on_bad_image"), [(-1, "fail"), (10, "skip")])
def test_labels_outside_the_classes(few, on_bad_image, label):
    source = few(20)
    source.examples[5] = source.examples[5]._replace(labels=(3, label))
    with refused("example 5", label, "input.num_classes"):
        take(evaluate(source, on_bad_image=on_bad_image), 2)
    source.examples[5] = source.examples[5]._replace(labels=(1, 2, 3))
    with refused():
        take(evaluate(source, on_bad_image=on_bad_image), 2)


@pytest.mark.parametrize("on_bad_image", ["fail", "skip"])
def test_a_source_that_fails_is_never_skipped(few, monkeypatch, on_bad_image):
    source = few(20)

    def read(indices):
        raise UserError("x.tfrecord, record 3: corrupt")

    monkeypatch.setattr(source, "read", read)
    with refused("x.tfrecord"):
        next(train(source, on_bad_image=on_bad_image))


@pytest.mark.parametrize("threads", [1, 2])
def test_batches_of_bad_images_weigh_nothing(list_source, threads):
    source = list_source([Example(b"junk", (0,))] * 3)
    batches = train(source, on_bad_image="skip", threads=threads)
    assert [batch["weight"].sum() for batch in take(batches, 3)] == [0, 0, 0]
    assert batches.num_bad == 48
