import jax
import numpy as np
import pytest

from tests.messages import refused
from vit_jax.data.host_tf import tf
from vit_jax.data.ops import autoaugment
from vit_jax.data.ops import table as ops
from vit_jax.data.ops.device_ops import uniform_draws
from vit_jax.data.reader import Encoded, encoded
from vit_jax.data.source import Example

ROUNDS = 40

EQUAL = [
    "flip_lr",
    "pad_crop(12, 3)",
    "pad_crop((5, 9), 2)",
    "pad_crop(20, 4, reflect=True)",
    "pad_crop(12, 0)|flip_lr|pad_crop(12, 1)|flip_lr",
    "random_erasing(0.8, fill=(1, 2, 3))",
    "random_erasing(0.5, 0.02, 0.9, 0.1, 7, False)",
]


@pytest.mark.parametrize("random", EQUAL)
def test_pixels_are_those_of_the_host(random, encode, photo_like):
    """Each op at its place, with the seeds of many examples and rounds."""
    pixels = photo_like(12, 14)
    preprocess = ops.parse(f"decode|central_crop((12, 13))|{random}")
    image = Encoded(*map(tf.constant, encoded(Example(encode(pixels), (0,)), 10**6)))
    seeds = np.stack([7 * 2**32 + np.arange(ROUNDS), np.arange(ROUNDS) ** 5 * 256], axis=1)
    on_host = tf.function(lambda seed: preprocess(image, seed, max_image_pixels=10**6))
    decoded = preprocess.before_random()(image, seeds[0], max_image_pixels=10**6).numpy()
    ops_there = preprocess.on_device()
    apply = jax.jit(jax.vmap(ops_there.apply, in_axes=(None, 0)))
    on_device = np.asarray(apply(decoded, ops_there.draw(seeds)))
    different = {on_device[i].tobytes() for i in range(ROUNDS)}
    assert len(different) > 1
    for seed, ours in zip(seeds, on_device, strict=True):
        np.testing.assert_array_equal(ours, on_host(tf.constant(seed)))


@pytest.mark.parametrize(
    ("policy", "torch"),
    [("cifar10", True), ("cifar10", False), ("imagenet", False), ("svhn", True)],
)
def test_autoaugment_is_that_of_the_host(policy, torch):
    op = autoaugment.autoaugment(policy, torch=torch)
    pixels = np.random.default_rng(0).integers(0, 256, (200, 32, 32, 3), np.uint8)
    seeds = np.stack([np.arange(200), np.arange(200) ** 3], axis=1)
    draws = uniform_draws(seeds, op.on_device.num_draws)
    on_device = np.asarray(jax.jit(jax.vmap(op.on_device.apply))(pixels, draws)).astype(int)
    on_host = tf.function(op.apply)
    expected = np.stack(
        [on_host(tf.constant(x), tf.constant(s)) for x, s in zip(pixels, seeds, strict=True)]
    )
    assert (expected != pixels).any(axis=(1, 2, 3)).mean() > 0.6
    off = np.abs(on_device - expected).max(axis=-1)
    assert (off > 0).mean() < 0.01  # a level in blends
    assert (off > 1).mean() < 0.002  # places on the border between two pixels


def test_the_list_of_versions_is_right():
    """Ops that need arguments get those of the smallest image."""
    arguments = {
        "pad_crop": "(8, 1)", "autoaugment": "('cifar10')", "random_erasing": "(0.25, fill=0)"
    }  # fmt: skip
    for name in ops.ON_DEVICE:
        ops.parse(f"decode|{name}{arguments.get(name, '')}").on_device()


def test_what_has_no_version_is_refused():
    with refused("input.cache"):
        ops.parse("decode|pad_crop(8, 1)|randaugment(2, 9)").on_device()
    with refused("flip_lr"):
        ops.parse("decode|flip_lr|resize(4)").on_device()


def test_ops_before_the_first_random_one():
    parsed = ops.parse("decode|resize(8)|central_crop(6)|flip_lr|resize(4)").before_random()
    assert (str(parsed), parsed.output_size) == ("decode|resize(8)|central_crop(6)", (6, 6))
    assert str(ops.parse("decode|inception_crop(4)").before_random()) == "decode"
    whole = ops.parse("decode|resize(8)")
    assert str(whole.before_random()) == "decode|resize(8)"


SEEDS = np.array(
    [[0, 0], [1, 2], [-1, 2**62], [2**33 + 5, 1437 * 256 + 3], [-(2**63), 2**63 - 1]], np.int64
)


def test_numbers_are_those_of_tensorflow():
    for number in (0, 1, 2, 4, 9):
        ours = uniform_draws(SEEDS, number)
        assert (ours.shape, ours.dtype) == ((len(SEEDS), number), np.float32)
        for seed, numbers in zip(SEEDS, ours, strict=True):
            np.testing.assert_array_equal(numbers, tf.random.stateless_uniform([number], seed))
