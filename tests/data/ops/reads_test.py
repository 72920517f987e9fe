"""What each op takes besides an RGB image of 8 bits: arrays of any channels, and maps beside it."""

import numpy as np
import pytest

from tests.messages import refused
from vit_jax.core.arrays import Pixels
from vit_jax.data.host_tf import tf
from vit_jax.data.ops import table

# Of each op in the table. They move pixels, and copy values where they resize; or change colours.
MOVE = {
    "decode": "decode",
    "inception_crop": "inception_crop(8, method='nearest')",
    "random_resized_crop": "random_resized_crop(8, method='nearest')",
    "resize": "resize(24, method='nearest')",
    "resize_small": "resize_small(9, method='nearest')",
    "resize_long": "resize_long(24, method='nearest')",
    "central_crop": "central_crop(12)",
    "crop_border": "crop_border(2)",
    "pad_crop": "pad_crop(16, 4)",
    "flip_lr": "flip_lr()",
}
COLOUR = {
    "white_level": "white_level(200)",
    "color_jitter": "color_jitter(0.4, 0.4, 0.4, 0.1)",
    "grayscale": "grayscale(1.0)",
    "solarize": "solarize(1.0)",
    "gaussian_blur": "gaussian_blur(1.0)",
    "three_augment": "three_augment()",
}
BOTH = {  # and have no version for maps
    "randaugment": "randaugment(2, 9)",
    "autoaugment": "autoaugment('v0')",
    "trivialaugment": "trivialaugment()",
    "timm_randaugment": "timm_randaugment(2, 9)",
    "random_erasing": "random_erasing(1.0)",
}
FIELD = "input.preprocess"
SEEDS = [tf.constant([seed, 7], tf.int64) for seed in range(4)]


def parsed(call):
    return table.parse(call if call == "decode" else f"decode|{call}", field=FIELD)


def applied(ops, pixels, seed):
    return ops.apply(tf.constant(pixels), seed, max_image_pixels=10**6).numpy()


def test_every_op_is_here():
    assert {*table.OPS} == {*MOVE, *COLOUR, *BOTH}


@pytest.mark.parametrize("name", MOVE)
@pytest.mark.parametrize("dtype", ["float32", "uint16"])
def test_what_moves_pixels_takes_each_channel_alike(name, dtype):
    ops, rng = parsed(MOVE[name]), np.random.default_rng(0)
    ops.check_pixels(Pixels(4, dtype, stored=True), FIELD)
    pixels = (rng.uniform(0, 1, (16, 20, 4)) * 60_000).astype(dtype)
    for seed in SEEDS:
        found = applied(ops, pixels, seed)
        each = [applied(ops, pixels[..., [k]], seed) for k in range(4)]
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, np.concatenate(each, axis=-1))


@pytest.mark.parametrize("name", MOVE)
def test_what_moves_pixels_moves_maps_alike(name):
    ops = parsed(MOVE[name])
    ops.check_maps(["mask"], FIELD)
    labels = np.random.default_rng(0).integers(1, 4, (16, 20, 1)).astype(np.uint16)
    for seed in SEEDS:
        found = applied(ops, np.repeat(labels * 80, 3, 2).astype(np.uint8), seed)
        moved = ops.on_map(tf.constant(labels), seed).numpy()
        np.testing.assert_array_equal(found[..., 0], moved * 80)


@pytest.mark.parametrize("name", COLOUR)
def test_what_changes_colours_leaves_maps(name):
    ops = parsed(COLOUR[name])
    ops.check_maps(["mask"], FIELD)
    labels = np.arange(320, dtype=np.uint16).reshape(16, 20, 1)
    image = np.random.default_rng(0).integers(0, 256, (16, 20, 3)).astype(np.uint8)
    for seed in SEEDS:
        assert applied(ops, image, seed).shape == image.shape
        np.testing.assert_array_equal(ops.on_map(tf.constant(labels), seed), labels[..., 0])


@pytest.mark.parametrize(
    "call", [*COLOUR.values(), *BOTH.values(), "central_crop(12, fill=(1,2,3))"]
)
def test_what_needs_colours_is_refused_of_arrays(call):
    for pixels in (Pixels(4, "uint8", stored=True), Pixels(3, "uint16", stored=True)):
        with refused(FIELD, call, str(pixels)):
            parsed(call).check_pixels(pixels, FIELD)


@pytest.mark.parametrize("name", BOTH)
def test_what_has_no_version_for_maps_is_refused(name):
    with refused(FIELD, BOTH[name], "mask"):
        parsed(BOTH[name]).check_maps(["mask"], FIELD)
