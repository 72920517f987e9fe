"""Resampling against Pillow, TensorFlow and closed forms."""

import numpy as np
import PIL
import pytest
from PIL import Image

from vit_jax.data.host_tf import tf
from vit_jax.data.ops import crops, resizing

# Equal except for sums on the border between two levels: hardly one value in 10,000.
TIE_LEVELS, TIES = 1, 1e-3
# Black and white blocks have many means that end in a half.
BLOCK_TIES = 0.01
# TensorFlow takes a sampled kernel's weights from a table with 1,024 entries.
TABLE_LEVELS = 1
# Difference between a JPEG's window decoded at half its size or less and one that is only
# resampled: the former is smoothed once more, and an unfiltered method smooths no further.
REDUCED_MEAN_LEVELS = 4.0

# Sizes for an image of 120 x 90; from the fourth on, Pillow 13 resizes the height first.
SIZES = [(48, 36), (200, 150), (119, 31), (64, 64), (32, 48), (20, 200)]


@pytest.fixture(scope="module")
def edges():
    """Black and white blocks, which make kernels overshoot, and noise: uint8 [120, 90, 3]."""
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 2, (12, 9, 3), np.uint8).repeat(10, 0).repeat(10, 1) * 255
    noise = rng.integers(0, 256, blocks.shape, np.uint8)
    return np.where(np.arange(90)[:, None] < 60, blocks, noise).astype(np.uint8)


def resized(pixels, size, method, **how):
    how = {"antialias": True, **how}
    return resizing.resized(tf.constant(pixels), size, method=method, **how).numpy()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("method", ["bicubic", "lanczos"])
def test_filters_that_overshoot_equal_pillow(edges, method, size):
    if PIL.__version__ < "13" and size in SIZES[3:]:
        pytest.skip("Pillow 12 always resizes the width first")
    expected = Image.fromarray(edges).resize(size[::-1], Image.Resampling[method.upper()])
    difference = np.abs(resized(edges, size, method).astype(int) - np.asarray(expected))
    assert difference.max() <= TIE_LEVELS
    assert (difference > 0).mean() <= TIES


@pytest.mark.parametrize("size", SIZES[:1] + SIZES[3:])  # others sample between two pixels
def test_nearest_equals_pillow(edges, size):
    expected = Image.fromarray(edges).resize(size[::-1], Image.Resampling.NEAREST)
    np.testing.assert_array_equal(resized(edges, size, "nearest"), expected)


@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("size", SIZES)
def test_bilinear_is_one_call_of_tensorflow_rounded(edges, size, antialias):
    """The default of every op: every run so far had these bits."""
    expected = tf.cast(tf.image.resize(edges, size, antialias=antialias) + 0.5, tf.uint8)
    actual = resized(edges, size, "bilinear", antialias=antialias)
    np.testing.assert_array_equal(actual, expected.numpy())


def area_weights(before, after):
    """[after, before]: each input pixel's share of an output pixel's area."""
    ratio = before / after
    start, pixel = np.arange(after)[:, None] * ratio, np.arange(before)[None]
    covered = np.minimum(start + ratio, pixel + 1) - np.maximum(start, pixel)
    return np.clip(covered, 0, None) / ratio


@pytest.mark.parametrize("size", SIZES)
def test_area_is_the_mean_of_what_a_pixel_covers(edges, size):
    rows, columns = (area_weights(b, a) for b, a in zip((120, 90), size, strict=True))
    exact = np.einsum("hH,wW,HWc->hwc", rows, columns, edges.astype(float), optimize=True)
    for levels, expected in (("nearest", np.floor(exact + 0.5)), ("down", np.floor(exact))):
        difference = np.abs(resized(edges, size, "area", levels=levels) - expected)
        assert difference.max() <= TIE_LEVELS
        if levels == "nearest":  # a rounding error may truncate a whole number to the level below
            assert (difference > 0).mean() <= BLOCK_TIES


@pytest.mark.parametrize("size", [(32, 48), (46, 46), (200, 20), (121, 91)])
@pytest.mark.parametrize("method", ["bilinear", "bicubic", "area"])
def test_sampling_floats_gives_the_same_numbers(edges, method, size):
    """Both sides of the border up to which images are sampled as floats."""
    exact = tf.image.resize(edges, size, method)
    expected = np.floor(np.clip(exact, 0, 255) + np.float32(0.5)).astype(np.uint8)
    np.testing.assert_array_equal(
        resized(edges, size, method, antialias=False), expected, strict=True
    )


def test_without_antialias_a_kernel_samples():
    """At a quarter of the width: Keys' kernel (a = -1/2) halfway between the two middle pixels."""
    rng = np.random.default_rng(1)
    pixels = rng.integers(0, 256, (16, 16, 3), np.uint8)
    kernel = np.array([-1, 9, 9, -1]) / 16
    rows = pixels.astype(float).reshape(4, 4, 16, 3)
    exact = np.einsum("k,hkwc->hwc", kernel, rows)
    exact = np.einsum("k,hwkc->hwc", kernel, exact.reshape(4, 4, 4, 3))
    actual = resized(pixels, (4, 4), "bicubic", antialias=False)
    assert np.abs(actual - np.clip(np.floor(exact + 0.5), 0, 255)).max() <= TABLE_LEVELS
    assert np.abs(actual - resized(pixels, (4, 4), "bicubic").astype(int)).max() > 10


@pytest.mark.parametrize("method", resizing.METHODS)
def test_every_op_takes_every_method(edges, method):
    seed = tf.constant([0, 0], tf.int64)
    pixels = tf.constant(edges)
    expected = resized(edges, (40, 30), method)
    for op in (resizing.resize, resizing.resize_small):
        size = (40, 30) if op is resizing.resize else 30
        actual = op(size, method=method, levels="nearest").apply(pixels, seed)
        np.testing.assert_array_equal(actual.numpy(), expected)
    made = [crops.inception_crop(30, method=method, antialias=a) for a in (True, False)]
    filtered, sampled = (crop.apply(pixels, seed).numpy() for crop in made)
    assert filtered.shape == sampled.shape == (30, 30, 3)
    assert (filtered != sampled).any() == (method not in ("nearest", "area"))


@pytest.mark.parametrize("method", ["bicubic", "lanczos", "area", "bilinear"])
@pytest.mark.parametrize("antialias", [True, False])
def test_a_reduced_window_shows_the_same(method, antialias, photo_like, encode):
    """decode.decode_window leaves `reduced` times the crop's size for the method to filter."""
    from vit_jax.data.reader import Encoded

    data = encode(photo_like(600, 480), "JPEG", quality=90)
    image = Encoded(tf.constant(data), tf.constant([600, 480]), tf.constant(1))
    for seed in range(3):
        exact, actual = (
            crops.inception_crop(64, method=method, antialias=antialias, reduced=reduced)
            .decode(image, tf.constant([seed, 0], tf.int64))
            .numpy()
            .astype(int)
            for reduced in (None, 1)
        )
        assert np.abs(actual - exact).mean() < REDUCED_MEAN_LEVELS


@pytest.mark.parametrize(
    ("method", "pixels"), [("bilinear", 200 * 600), ("area", 200 * 600), ("bicubic", 200 * 8)]
)
def test_the_pixel_limit_counts_what_lies_in_between(method, pixels):
    """TensorFlow's intermediate from 1 x 600 to 200 x 8 is 200 x 600; two passes have none."""
    before = tf.constant((1, 600), tf.int64)
    assert int(resizing.largest(before, (200, 8), method=method, antialias=True)) == pixels
