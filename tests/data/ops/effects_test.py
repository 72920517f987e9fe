import colorsys

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from vit_jax.data.host_tf import tf
from vit_jax.data.ops import effects

SIZES = [(1, 1), (7, 300), (300, 7), (64, 48)]
FACTORS = [0.0, 0.1, 0.5, 1.0, 1.9, 2.8, 3.7]
# Pillow rounds the scale, so that an integral quotient may come out one lower.
PILLOW_AUTOCONTRAST_LEVELS = 1
# Pillow's HSV has 8 bits; the closed form has not, and differs by rounding only.
HUE_LEVELS = 1


@pytest.fixture(params=SIZES, ids=str)
def pixels(request, photo_like):
    return photo_like(*request.param)


def run(function, pixels, *arguments):
    result = function(tf.constant(pixels), *(tf.constant(a, tf.float32) for a in arguments))
    assert result.dtype == tf.uint8
    return result.numpy()


@pytest.mark.parametrize(
    ("function", "enhance"),
    [
        (effects.brightness, ImageEnhance.Brightness),
        (effects.contrast, ImageEnhance.Contrast),
        (effects.saturation, ImageEnhance.Color),
    ],
)
def test_factors_equal_pillow(function, enhance, pixels):
    for factor in FACTORS:
        expected = enhance(Image.fromarray(pixels)).enhance(factor)
        np.testing.assert_array_equal(run(function, pixels, factor), np.asarray(expected))


def test_grayscale_equals_pillow(pixels):
    expected = Image.fromarray(pixels).convert("L").convert("RGB")
    np.testing.assert_array_equal(run(effects.grayscale, pixels), np.asarray(expected))


@pytest.mark.parametrize("function", ["invert", "equalize"])
def test_without_arguments_equal_pillow(function, pixels):
    expected = getattr(ImageOps, function)(Image.fromarray(pixels))
    np.testing.assert_array_equal(run(getattr(effects, function), pixels), np.asarray(expected))


@pytest.mark.parametrize("high", [1, 2, 200, 256])
def test_equalize_of_few_values_equals_pillow(high):
    """One value, two values, and a rare last one, whose table exceeds 255."""
    pixels = np.random.default_rng(high).integers(0, high, (20, 30, 3), np.uint8)
    pixels[0, 0] = high - 1
    expected = ImageOps.equalize(Image.fromarray(pixels))
    np.testing.assert_array_equal(run(effects.equalize, pixels), np.asarray(expected))


def test_solarize_equals_pillow(pixels):
    for threshold in (0, 1, 128, 255, 256):
        expected = ImageOps.solarize(Image.fromarray(pixels), threshold)
        np.testing.assert_array_equal(
            run(effects.solarize, pixels, threshold), np.asarray(expected)
        )


def test_posterize_equals_pillow(pixels):
    for bits in range(1, 9):
        expected = ImageOps.posterize(Image.fromarray(pixels), bits)
        np.testing.assert_array_equal(run(effects.posterize, pixels, bits), np.asarray(expected))


def test_solarize_add_by_its_definition():
    pixels = np.arange(256, dtype=np.uint8).repeat(3).reshape(16, 16, 3)
    for addition in (0, 110, 165, 255):
        wide = pixels.astype(int)
        expected = np.where(wide < 128, np.minimum(wide + addition, 255), wide)
        np.testing.assert_array_equal(run(effects.solarize_add, pixels, addition), expected)


def test_autocontrast_is_the_exact_quotient_and_nearly_pillow(pixels):
    result = run(effects.autocontrast, pixels).astype(int)
    low, high = (f(pixels.astype(int), axis=(0, 1)) for f in (np.min, np.max))
    stretched = (pixels - low) * 255 // np.maximum(high - low, 1)
    np.testing.assert_array_equal(result, np.where(low == high, pixels, stretched))
    difference = result - np.asarray(ImageOps.autocontrast(Image.fromarray(pixels)))
    assert np.abs(difference).max() <= PILLOW_AUTOCONTRAST_LEVELS


@pytest.mark.parametrize("turn", [-0.5, -0.1, 0.0, 0.25, 0.5])
def test_hue_equals_the_closed_form(turn):
    pixels = np.random.default_rng(0).integers(0, 256, (8, 9, 3), np.uint8)
    pixels[0, :3] = [[0, 0, 0], [255, 255, 255], [7, 7, 7]]

    def turned(rgb):
        hue, saturation, value = colorsys.rgb_to_hsv(*(rgb / 255))
        return [255 * x for x in colorsys.hsv_to_rgb((hue + turn) % 1, saturation, value)]

    expected = np.apply_along_axis(turned, -1, pixels)
    assert np.abs(run(effects.hue, pixels, turn) - expected).max() <= HUE_LEVELS


GRAY = (128, 128, 128)
# Pillow steps through the image in 65536ths of a pixel: within that error of a border between two
# pixels, it takes the other one.
PILLOW_OTHER_PIXELS = 0.005


@pytest.fixture(params=[*SIZES, (65, 49)], ids=str)
def noise(request):
    return np.random.default_rng(0).integers(0, 256, (*request.param, 3), np.uint8)


def assert_nearly_equal(actual, expected):
    is_other = (actual.numpy() != np.asarray(expected)).any(axis=-1)
    assert is_other.mean() <= PILLOW_OTHER_PIXELS


@pytest.mark.parametrize("degrees", [-44.0, -30.0, 0.0, 3.0, 77.0])
def test_rotate_equals_pillow(noise, degrees):
    rotated = effects.rotate(tf.constant(noise), tf.constant(degrees))
    assert_nearly_equal(rotated, Image.fromarray(noise).rotate(degrees, fillcolor=GRAY))


@pytest.mark.parametrize("amount", [-0.45, -0.3, 0.0, 0.03, 0.9])
@pytest.mark.parametrize(
    ("function", "matrix"),
    [
        (effects.shear_x, lambda s: (1, s, 0, 0, 1, 0)),
        (effects.shear_y, lambda s: (1, 0, 0, s, 1, 0)),
        (effects.translate_x, lambda s: (1, 0, 40 * s, 0, 1, 0)),
        (effects.translate_y, lambda s: (1, 0, 0, 0, 1, 40 * s)),
    ],
)
def test_shears_and_translations_equal_pillow(noise, amount, function, matrix):
    image = Image.fromarray(noise)
    expected = image.transform(image.size, Image.Transform.AFFINE, matrix(amount), fillcolor=GRAY)
    scale = 40 if function in (effects.translate_x, effects.translate_y) else 1
    assert_nearly_equal(function(tf.constant(noise), tf.constant(scale * amount)), expected)


@pytest.mark.parametrize("degrees", [45.0, -45.0])
@pytest.mark.parametrize("size", [(48, 64), (224, 224)], ids=str)
def test_rounding_does_not_choose_pixels(size, degrees):
    """The diagonals of this rotation lie on borders between pixels."""
    pixels = tf.constant(np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8))
    expected = effects.rotate(pixels, tf.constant(degrees)).numpy()
    for error in (-1e-5, 1e-5):
        rotated = effects.rotate(pixels, tf.constant(degrees + error)).numpy()
        np.testing.assert_array_equal(rotated, expected)


def test_translations_by_whole_pixels_are_exact(noise):
    height, width, _ = noise.shape
    for distance in (-150, -3, 0, 3, 150):
        wide = np.pad(noise, [(0, 0), (150, 150), (0, 0)], constant_values=128)
        expected = wide[:, 150 + distance : 150 + distance + width]
        moved = effects.translate_x(tf.constant(noise), tf.constant(float(distance)))
        np.testing.assert_array_equal(moved.numpy(), expected)
        high = np.pad(noise, [(150, 150), (0, 0), (0, 0)], constant_values=128)
        expected = high[150 + distance : 150 + distance + height]
        moved = effects.translate_y(tf.constant(noise), tf.constant(float(distance)))
        np.testing.assert_array_equal(moved.numpy(), expected)


def test_cutout_covers_a_square_and_what_is_inside_of_it(noise):
    height, width, _ = noise.shape
    for half_side in (0, 1, 40, 500):
        for y, x in ((0.0, 0.0), (0.5, 0.25), (0.999, 0.999)):
            cut = effects.cutout(
                tf.constant(noise), tf.constant(float(half_side)), tf.constant([y, x])
            )
            rows = np.abs(np.arange(height) + 0.5 - int(y * height)) < half_side
            columns = np.abs(np.arange(width) + 0.5 - int(x * width)) < half_side
            covered = rows[:, None, None] & columns[:, None]
            np.testing.assert_array_equal(cut.numpy(), np.where(covered, 128, noise))


BLURRED_SIZES = [(1, 1), (2, 2), (2, 50), (3, 3), (7, 300), (64, 48)]
# Rounded after each axis: half a level, then another half.
BLUR_LEVELS = 1.0


@pytest.mark.parametrize("size", BLURRED_SIZES, ids=str)
def test_sharpness_equals_pillow(size):
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    for factor in (0.0, 0.1, 1.0, 1.9, 3.7):
        expected = ImageEnhance.Sharpness(Image.fromarray(pixels)).enhance(factor)
        sharp = effects.sharpness(tf.constant(pixels), tf.constant(factor))
        np.testing.assert_array_equal(sharp.numpy(), np.asarray(expected))


@pytest.mark.parametrize("size", BLURRED_SIZES, ids=str)
@pytest.mark.parametrize("sigma", [0.1, 0.7, 2.0, 10.0])
def test_gaussian_blur_equals_the_closed_form(size, sigma):
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)

    def weights(length):
        places = np.arange(length)
        bell = np.exp(-((places[:, None] - places) ** 2) / (2 * sigma**2))
        return bell / bell.sum(axis=1, keepdims=True)

    down, across = weights(size[0]), weights(size[1])
    expected = np.einsum("ij,kl,jlc->ikc", down, across, pixels.astype(float), optimize=True)
    blurred = effects.gaussian_blur(tf.constant(pixels), tf.constant(sigma)).numpy()
    assert np.abs(blurred - expected).max() <= BLUR_LEVELS


def test_statistics_of_large_images_are_exact():
    """The sum of the luma exceeds the integers that float32 holds."""
    pixels = np.full((300, 400, 3), 201, np.uint8)
    pixels[:150] = 198
    expected = ImageEnhance.Contrast(Image.fromarray(pixels)).enhance(0.0)
    np.testing.assert_array_equal(run(effects.contrast, pixels, 0.0), np.asarray(expected))
