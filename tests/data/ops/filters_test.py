from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageFilter

from vit_jax.data.host_tf import tf
from vit_jax.data.ops import filters

SIZES = [(1, 1), (2, 2), (2, 50), (3, 3), (7, 300), (64, 48)]
# Rounded after each of the two directions: half a level, then another half.
BLUR_LEVELS = 1.0
# Pillow's is three box filters, close to a Gaussian and not equal to one.
PILLOW_BLUR_LEVELS = 6
PILLOW_BLUR_MEAN_LEVELS = 0.6


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_sharpness_equals_pillow(size: tuple[int, int]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    for factor in (0.0, 0.1, 1.0, 1.9, 3.7):
        expected = ImageEnhance.Sharpness(Image.fromarray(pixels)).enhance(factor)
        found = filters.sharpness(tf.constant(pixels), tf.constant(factor))
        np.testing.assert_array_equal(found.numpy(), np.asarray(expected))


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("sigma", [0.1, 0.7, 2.0, 10.0])
def test_gaussian_blur_equals_the_closed_form(size: tuple[int, int], sigma: float) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)

    def weights(length: int) -> np.ndarray:
        places = np.arange(length)
        bell = np.exp(-((places[:, None] - places) ** 2) / (2 * sigma**2))
        return bell / bell.sum(axis=1, keepdims=True)

    down, across = weights(size[0]), weights(size[1])
    expected = np.einsum("ij,kl,jlc->ikc", down, across, pixels.astype(float), optimize=True)
    found = filters.gaussian_blur(tf.constant(pixels), tf.constant(sigma)).numpy()
    assert np.abs(found - expected).max() <= BLUR_LEVELS


@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0])
def test_gaussian_blur_is_nearly_pillow(
    photo_like: Callable[..., np.ndarray], sigma: float
) -> None:
    pixels = photo_like(64, 48)
    inside = slice(8, -8)  # at the rim Pillow repeats the last pixel
    expected = np.asarray(Image.fromarray(pixels).filter(ImageFilter.GaussianBlur(sigma)))
    found = filters.gaussian_blur(tf.constant(pixels), tf.constant(sigma)).numpy()
    difference = np.abs(found.astype(int) - expected)[inside, inside]
    assert difference.max() <= PILLOW_BLUR_LEVELS
    assert difference.mean() <= PILLOW_BLUR_MEAN_LEVELS


@pytest.mark.parametrize("value", [0, 1, 254, 255])
def test_gaussian_blur_keeps_an_even_image(value: int) -> None:
    pixels = tf.fill((33, 65, 3), tf.constant(value, tf.uint8))
    for sigma in (0.1, 1.3, 30.0):
        blurred = filters.gaussian_blur(pixels, tf.constant(sigma))
        np.testing.assert_array_equal(blurred.numpy(), pixels.numpy())
