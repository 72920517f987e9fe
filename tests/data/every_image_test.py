import numpy as np
import pytest

from tests.messages import refused
from vit_jax.core.errors import UserError
from vit_jax.data.bad_images import bad_images
from vit_jax.data.host_tf import tf
from vit_jax.data.ops import table as ops
from vit_jax.data.pipeline import eval_batches
from vit_jax.data.reader import encoded
from vit_jax.data.source import Example


def look(source, indices=None, preprocess=""):
    shown = []
    messages = bad_images(
        source,
        preprocess or "decode|inception_crop(8)|flip_lr",
        np.arange(source.num_examples) if indices is None else indices,
        max_image_pixels=10**4,
        threads=2,
        progress=lambda *at: shown.append(at),
    )
    faults = list(messages)
    assert [fault.skippable for fault in faults] == [
        not fault.text.startswith("record") and "label" not in fault.text for fault in faults
    ]
    result = [fault.text for fault in faults]
    total = source.num_examples if indices is None else len(indices)
    assert shown[-1] == (total, total)
    assert sorted(shown) == shown
    return result


@pytest.fixture
def source(list_source, encode, photo_like):
    """A source of 130 photographs: three batches."""
    image = encode(photo_like(16, 16), "JPEG")
    return list_source([Example(image, (i % 10,)) for i in range(130)])


def test_all_bad_images_are_named(source, encode):
    assert look(source) == []
    source.examples[3] = Example(b"text", (0,))
    source.examples[70] = Example(source.examples[70].image[:-40], (0,))
    source.examples[72] = Example(encode(np.zeros((9, 9), np.uint8), "PPM")[:60], (0,))
    source.examples[71] = Example(encode(np.zeros((101, 100), np.uint8)), (0,))
    source.examples[129] = Example(b"", (0,), fault="a file of 40 GB")
    messages = look(source)
    assert [line.partition(":")[0] for line in messages] == [
        "example 3", "example 70", "example 71", "example 72", "example 129",
    ]  # fmt: skip
    assert "format" in messages[0] and "max_image_pixels=10000" in messages[2]
    assert "truncated" in messages[3] and messages[4].endswith(source.examples[129].fault)
    assert look(source, np.array([0, 129])) == messages[4:]


def test_records_that_cannot_be_read_are_named_too(source, monkeypatch):
    whole = source.read

    def read(indices):
        for index in indices:
            if index in (66, 80):
                raise UserError(f"record {index} is damaged")
        return whole(indices)

    monkeypatch.setattr(source, "read", read)
    source.examples[67] = Example(b"text", (0,))
    source.examples[129] = Example(source.examples[0].image, (11,))
    names = [" ".join(line.split()[:2]).rstrip(":") for line in look(source)]
    assert sorted(names) == ["example 129", "example 67", "record 66", "record 80"]


@pytest.fixture
def corrupt_later(list_source, source, monkeypatch):
    """Example 5 of 600 is a bad image, and record 300, which is read ahead of it, is damaged."""
    many = list_source(source.examples[:1] * 600)
    many.examples[5] = Example(b"text", (0,))
    whole = many.read

    def read(indices):
        if 300 in indices:
            raise UserError("record 300 is damaged")
        return whole(indices)

    monkeypatch.setattr(many, "read", read)
    return many


def test_a_record_that_is_read_ahead_is_no_fault_of_a_batch_before_it(corrupt_later):
    faults = look(corrupt_later)
    assert [fault.partition(":")[0] for fault in faults] == ["example 5", "record 300 is damaged"]
    batches = lambda on_bad_image: eval_batches(
        corrupt_later,
        "decode|resize(8)",
        batch_size=64,
        on_bad_image=on_bad_image,
        max_image_pixels=10**4,
        threads=2,
    )
    with batches("fail") as made, refused("example 5 is a bad image"):
        next(made)
    with batches("skip") as made:
        assert [next(made)["weight"].sum() for _ in range(4)] == [63, 64, 64, 64]
        with refused("record 300"):
            next(made)


def test_damage_outside_of_the_window_is_found(encode, photo_like):
    """A random crop decodes only its window; here a marker in the middle is damaged."""
    image = encode(photo_like(96, 96), "JPEG", quality=95)
    image = image[: len(image) // 2] + b"\xff\xc8" + image[len(image) // 2 :]
    example = encoded(Example(image, (0,)), 10**9)
    upper = ops.parse("decode|inception_crop(8, 0.05, 0.06)|flip_lr")
    assert not isinstance(example, str)
    arguments = (example, tf.constant([3, 5], tf.int64))
    seen = 0
    for seed in range(20):
        arguments = (example, tf.constant([seed, 5], tf.int64))
        try:
            upper(*arguments, max_image_pixels=10**9)
            seen += 1
        except tf.errors.InvalidArgumentError:
            pass
    assert seen
    with pytest.raises(tf.errors.InvalidArgumentError):
        upper.of_whole_images()(*arguments, max_image_pixels=10**9)
