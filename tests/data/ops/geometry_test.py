from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

from vit_jax.data.host_tf import tf
from vit_jax.data.ops import geometry

SIZES = [(1, 1), (7, 300), (300, 7), (64, 48), (65, 49)]
GRAY = (128, 128, 128)
# Pillow steps through the image in 65536ths of a pixel: where a place is within its error of the
# border between two pixels, it takes the other one.
PILLOW_OTHER_PIXELS = 0.005


@pytest.fixture(params=SIZES, ids=str)
def pixels(request: pytest.FixtureRequest) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (*request.param, 3), np.uint8)


def assert_nearly_equal(found: tf.Tensor, expected: Image.Image) -> None:
    is_other = (found.numpy() != np.asarray(expected)).any(axis=-1)
    assert is_other.mean() <= PILLOW_OTHER_PIXELS


@pytest.mark.parametrize("degrees", [-44.0, -30.0, 0.0, 3.0, 77.0])
def test_rotate_equals_pillow(pixels: np.ndarray, degrees: float) -> None:
    found = geometry.rotate(tf.constant(pixels), tf.constant(degrees))
    assert_nearly_equal(found, Image.fromarray(pixels).rotate(degrees, fillcolor=GRAY))


@pytest.mark.parametrize("amount", [-0.45, -0.3, 0.0, 0.03, 0.9])
@pytest.mark.parametrize(
    ("function", "matrix"),
    [
        (geometry.shear_x, lambda s: (1, s, 0, 0, 1, 0)),
        (geometry.shear_y, lambda s: (1, 0, 0, s, 1, 0)),
        (geometry.translate_x, lambda s: (1, 0, 40 * s, 0, 1, 0)),
        (geometry.translate_y, lambda s: (1, 0, 0, 0, 1, 40 * s)),
    ],
)
def test_shears_and_translations_equal_pillow(
    pixels: np.ndarray, amount: float, function: Callable[..., tf.Tensor],
    matrix: Callable[[float], tuple[float, ...]],
) -> None:  # fmt: skip
    image = Image.fromarray(pixels)
    expected = image.transform(image.size, Image.Transform.AFFINE, matrix(amount), fillcolor=GRAY)
    scale = 40 if function in (geometry.translate_x, geometry.translate_y) else 1
    assert_nearly_equal(function(tf.constant(pixels), tf.constant(scale * amount)), expected)


@pytest.mark.parametrize("degrees", [45.0, -45.0])
@pytest.mark.parametrize("size", [(48, 64), (224, 224)], ids=str)
def test_rounding_does_not_choose_pixels(size: tuple[int, int], degrees: float) -> None:
    """The diagonals of this rotation lie on borders between pixels."""
    pixels = tf.constant(np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8))
    expected = geometry.rotate(pixels, tf.constant(degrees)).numpy()
    for error in (-1e-5, 1e-5):
        found = geometry.rotate(pixels, tf.constant(degrees + error)).numpy()
        np.testing.assert_array_equal(found, expected)


def test_translations_by_whole_pixels_are_exact(pixels: np.ndarray) -> None:
    height, width, _ = pixels.shape
    for distance in (-150, -3, 0, 3, 150):
        wide = np.pad(pixels, [(0, 0), (150, 150), (0, 0)], constant_values=128)
        expected = wide[:, 150 + distance : 150 + distance + width]
        found = geometry.translate_x(tf.constant(pixels), tf.constant(float(distance)))
        np.testing.assert_array_equal(found.numpy(), expected)
        high = np.pad(pixels, [(150, 150), (0, 0), (0, 0)], constant_values=128)
        expected = high[150 + distance : 150 + distance + height]
        found = geometry.translate_y(tf.constant(pixels), tf.constant(float(distance)))
        np.testing.assert_array_equal(found.numpy(), expected)


def test_cutout_covers_a_square_and_what_is_inside_of_it(pixels: np.ndarray) -> None:
    height, width, _ = pixels.shape
    for half_side in (0, 1, 40, 500):
        for y, x in ((0.0, 0.0), (0.5, 0.25), (0.999, 0.999)):
            found = geometry.cutout(
                tf.constant(pixels), tf.constant(float(half_side)), tf.constant([y, x])
            )
            rows = np.abs(np.arange(height) + 0.5 - int(y * height)) < half_side
            columns = np.abs(np.arange(width) + 0.5 - int(x * width)) < half_side
            covered = rows[:, None, None] & columns[:, None]
            np.testing.assert_array_equal(found.numpy(), np.where(covered, 128, pixels))


def test_paste(pixels: np.ndarray) -> None:
    height, width, _ = pixels.shape
    patch = np.full(((height + 1) // 2, (width + 1) // 2, 3), 9, np.uint8)
    expected = pixels.copy()
    expected[height // 2 :, width // 2 :] = 9
    begin = tf.constant([height // 2, width // 2])
    found = geometry.paste(tf.constant(pixels), tf.constant(patch), begin)
    np.testing.assert_array_equal(found.numpy(), expected)
