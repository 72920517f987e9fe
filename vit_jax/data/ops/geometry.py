"""Moves or covers pixels: uint8 [H, W, 3] -> uint8 [H, W, 3].

The nearest pixel is taken, and gray where there is none. Coordinates are Pillow's: pixel (x, y)
has its centre at (x + 1/2, y + 1/2).
"""

import math

from vit_jax.data.host_tf import tf

_GRAY = tf.constant(128, tf.uint8)
# Fraction of a pixel. Without it, rounding errors would choose between two pixels where a point is
# on their border, as the whole diagonals do in a rotation by 45 degrees.
_TO_THE_RIGHT = 2.0**-10


def rotate(pixels: tf.Tensor, degrees: tf.Tensor | float) -> tf.Tensor:
    """Rotates about the centre, counter-clockwise."""
    angle = degrees * math.radians(1)
    cos, sin = tf.cos(angle), tf.sin(angle)
    height, width = tf.unstack(tf.cast(tf.shape(pixels)[:2], tf.float32))
    return affine(pixels, (cos, -sin, 0.0), (sin, cos, 0.0), origin=(width / 2, height / 2))


def shear_x(pixels: tf.Tensor, slope: tf.Tensor | float) -> tf.Tensor:
    """Takes each row from `slope` * y further to the right."""
    return affine(pixels, (1.0, slope, 0.0), (0.0, 1.0, 0.0))


def shear_y(pixels: tf.Tensor, slope: tf.Tensor | float) -> tf.Tensor:
    """Takes each column from `slope` * x further down."""
    return affine(pixels, (1.0, 0.0, 0.0), (slope, 1.0, 0.0))


def translate_x(pixels: tf.Tensor, distance_px: tf.Tensor | float) -> tf.Tensor:
    """Takes pixels from `distance_px` further to the right."""
    return affine(pixels, (1.0, 0.0, distance_px), (0.0, 1.0, 0.0))


def translate_y(pixels: tf.Tensor, distance_px: tf.Tensor | float) -> tf.Tensor:
    """Takes pixels from `distance_px` further down."""
    return affine(pixels, (1.0, 0.0, 0.0), (0.0, 1.0, distance_px))


def affine(
    pixels: tf.Tensor,
    x_from: tuple[tf.Tensor | float, ...],
    y_from: tuple[tf.Tensor | float, ...],
    origin: tuple[tf.Tensor | float, tf.Tensor | float] = (0.0, 0.0),
) -> tf.Tensor:
    """Output (x, y) shows input (a x + b y + c, d x + e y + f), given (a, b, c) and (d, e, f).

    x and y are measured from `origin`. It is not TensorFlow's ImageProjectiveTransformV3, because
    that computes the position again for each channel.
    """
    height, width = tf.unstack(tf.shape(pixels)[:2])
    x = tf.range(tf.cast(width, tf.float32)) + 0.5 - origin[0]
    y = tf.range(tf.cast(height, tf.float32))[:, None] + 0.5 - origin[1]
    columns, rows = (
        tf.cast(tf.floor((of_x * x + of_y * y) + (constant + start + _TO_THE_RIGHT)), tf.int32)
        for (of_x, of_y, constant), start in zip((x_from, y_from), origin, strict=True)
    )
    is_inside = (columns >= 0) & (columns < width) & (rows >= 0) & (rows < height)
    places = tf.where(is_inside, rows * width + columns, height * width)
    with_gray = tf.concat([tf.reshape(pixels, [-1, 3]), tf.fill([1, 3], _GRAY)], 0)
    return tf.gather_nd(with_gray, places[..., None])


def cutout(pixels: tf.Tensor, half_side_px: tf.Tensor | float, centre: tf.Tensor) -> tf.Tensor:
    """Covers a square of 2 * `half_side_px` about `centre` (y and x in [0, 1)) with gray.

    The part outside of the image is cut off. DeVries and Taylor (arXiv 1708.04552).
    """
    size = tf.shape(pixels)[:2]
    middle = tf.cast(centre * tf.cast(size, tf.float32), tf.int32)
    half_side = tf.cast(half_side_px, tf.int32)
    begin = tf.maximum(middle - half_side, 0)
    extent = tf.minimum(middle + half_side, size) - begin
    return paste(pixels, tf.fill(tf.concat([extent, [3]], 0), _GRAY), begin)


def paste(pixels: tf.Tensor, patch: tf.Tensor, begin: tf.Tensor) -> tf.Tensor:
    """Pastes `patch`, uint8 [h, w, 3], over the pixels from `begin` on, (top, left)."""
    top, left = tf.unstack(begin)
    bottom, right = tf.unstack(begin + tf.shape(patch)[:2])
    middle = tf.concat([pixels[top:bottom, :left], patch, pixels[top:bottom, right:]], 1)
    return tf.concat([pixels[:top], middle, pixels[bottom:]], 0)
