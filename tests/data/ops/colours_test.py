import colorsys
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from vit_jax.data.host_tf import tf
from vit_jax.data.ops import colours

SIZES = [(1, 1), (7, 300), (300, 7), (64, 48)]
FACTORS = [0.0, 0.1, 0.5, 1.0, 1.9, 2.8, 3.7]
# Pillow takes a rounded scale, so that a quotient that is a whole number may come out one lower.
PILLOW_AUTOCONTRAST_LEVELS = 1
# Its HSV is in 8 bits; the closed form is not, and differs by rounding alone.
HUE_LEVELS = 1

Pixels = np.ndarray


@pytest.fixture(params=SIZES, ids=str)
def pixels(request: pytest.FixtureRequest, photo_like: Callable[..., Pixels]) -> Pixels:
    return photo_like(*request.param)


def found(function: Callable[..., tf.Tensor], pixels: Pixels, *arguments: float) -> Pixels:
    result = function(tf.constant(pixels), *(tf.constant(a, tf.float32) for a in arguments))
    assert result.dtype == tf.uint8
    return result.numpy()


@pytest.mark.parametrize(
    ("function", "enhance"),
    [
        (colours.brightness, ImageEnhance.Brightness),
        (colours.contrast, ImageEnhance.Contrast),
        (colours.saturation, ImageEnhance.Color),
    ],
)
def test_factors_equal_pillow(
    function: Callable[..., tf.Tensor], enhance: Callable[..., ImageEnhance.Color], pixels: Pixels
) -> None:
    for factor in FACTORS:
        expected = enhance(Image.fromarray(pixels)).enhance(factor)
        np.testing.assert_array_equal(found(function, pixels, factor), np.asarray(expected))


def test_grayscale_equals_pillow(pixels: Pixels) -> None:
    expected = Image.fromarray(pixels).convert("L").convert("RGB")
    np.testing.assert_array_equal(found(colours.grayscale, pixels), np.asarray(expected))


@pytest.mark.parametrize("function", ["invert", "equalize"])
def test_without_arguments_equal_pillow(function: str, pixels: Pixels) -> None:
    expected = getattr(ImageOps, function)(Image.fromarray(pixels))
    np.testing.assert_array_equal(found(getattr(colours, function), pixels), np.asarray(expected))


@pytest.mark.parametrize("high", [1, 2, 200, 256])
def test_equalize_of_few_values_equals_pillow(high: int) -> None:
    """One value, two values; and a last one that is rare, so that the table goes beyond 255."""
    pixels = np.random.default_rng(high).integers(0, high, (20, 30, 3), np.uint8)
    pixels[0, 0] = high - 1
    expected = ImageOps.equalize(Image.fromarray(pixels))
    np.testing.assert_array_equal(found(colours.equalize, pixels), np.asarray(expected))


def test_solarize_equals_pillow(pixels: Pixels) -> None:
    for threshold in (0, 1, 128, 255, 256):
        expected = ImageOps.solarize(Image.fromarray(pixels), threshold)
        np.testing.assert_array_equal(
            found(colours.solarize, pixels, threshold), np.asarray(expected)
        )


def test_posterize_equals_pillow(pixels: Pixels) -> None:
    for bits in range(1, 9):
        expected = ImageOps.posterize(Image.fromarray(pixels), bits)
        np.testing.assert_array_equal(found(colours.posterize, pixels, bits), np.asarray(expected))


def test_solarize_add_by_its_definition() -> None:
    pixels = np.arange(256, dtype=np.uint8).repeat(3).reshape(16, 16, 3)
    for addition in (0, 110, 165, 255):
        wide = pixels.astype(int)
        expected = np.where(wide < 128, np.minimum(wide + addition, 255), wide)
        np.testing.assert_array_equal(found(colours.solarize_add, pixels, addition), expected)


def test_autocontrast_is_the_exact_quotient_and_nearly_pillow(pixels: Pixels) -> None:
    result = found(colours.autocontrast, pixels).astype(int)
    low, high = (f(pixels.astype(int), axis=(0, 1)) for f in (np.min, np.max))
    stretched = (pixels - low) * 255 // np.maximum(high - low, 1)
    np.testing.assert_array_equal(result, np.where(low == high, pixels, stretched))
    difference = result - np.asarray(ImageOps.autocontrast(Image.fromarray(pixels)))
    assert np.abs(difference).max() <= PILLOW_AUTOCONTRAST_LEVELS


@pytest.mark.parametrize("turn", [-0.5, -0.1, 0.0, 0.25, 0.5])
def test_hue_equals_the_closed_form(turn: float) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 9, 3), np.uint8)
    pixels[0, :3] = [[0, 0, 0], [255, 255, 255], [7, 7, 7]]

    def turned(rgb: Pixels) -> list[float]:
        hue, saturation, value = colorsys.rgb_to_hsv(*(rgb / 255))
        return [255 * x for x in colorsys.hsv_to_rgb((hue + turn) % 1, saturation, value)]

    expected = np.apply_along_axis(turned, -1, pixels)
    assert np.abs(found(colours.hue, pixels, turn) - expected).max() <= HUE_LEVELS


def test_statistics_of_large_images_are_exact() -> None:
    """The sum of the luma goes beyond what float32 holds."""
    pixels = np.full((300, 400, 3), 201, np.uint8)
    pixels[:150] = 198
    expected = ImageEnhance.Contrast(Image.fromarray(pixels)).enhance(0.0)
    np.testing.assert_array_equal(found(colours.contrast, pixels, 0.0), np.asarray(expected))
