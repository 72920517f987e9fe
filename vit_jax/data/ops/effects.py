"""Effects on images: uint8 [H, W, 3] -> uint8 [H, W, 3]."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from vit_jax.data.host_tf import tf

# ITU-R 601-2 luma, in 65536ths.
LUMA = (19595.0, 38470.0, 7471.0)


def blend(other: tf.Tensor | float, pixels: tf.Tensor, factor: tf.Tensor | float) -> tf.Tensor:
    """Interpolates from `other` (float32, factor 0) to `pixels` (1), or extrapolates; 0 to 255."""
    blended = other + factor * (tf.cast(pixels, tf.float32) - other)
    return tf.cast(tf.clip_by_value(blended, 0.0, 255.0), tf.uint8)


def brightness(pixels: tf.Tensor, factor: tf.Tensor | float) -> tf.Tensor:
    """Blends with black."""
    return blend(0.0, pixels, factor)


def contrast(pixels: tf.Tensor, factor: tf.Tensor | float) -> tf.Tensor:
    """Blends with the mean of the image's luma."""
    mean = tf.reduce_mean(tf.cast(luma(pixels), tf.float64))
    return blend(tf.cast(tf.floor(mean + 0.5), tf.float32), pixels, factor)


def saturation(pixels: tf.Tensor, factor: tf.Tensor | float) -> tf.Tensor:
    """Blends with the luma of each pixel."""
    return blend(luma(pixels), pixels, factor)


def hue(pixels: tf.Tensor, turn: tf.Tensor | float) -> tf.Tensor:
    """Turns hues by that part of the circle; value and saturation are kept."""
    return tf.image.adjust_hue(pixels, turn)


def luma(pixels: tf.Tensor) -> tf.Tensor:
    """Luma of each pixel, three times, whole numbers 0..255; float32 [H, W, 3]."""
    values = tf.reshape(tf.cast(pixels, tf.float32), [-1, 3])
    # Sums of whole numbers under 2**24: nothing is rounded before `floor`.
    weighted = values @ tf.constant([[weight] * 3 for weight in LUMA])
    return tf.reshape(tf.floor((weighted + 2**15) / 2**16), tf.shape(pixels))


def grayscale(pixels: tf.Tensor) -> tf.Tensor:
    """The luma in all three channels."""
    return tf.cast(luma(pixels), tf.uint8)


def invert(pixels: tf.Tensor) -> tf.Tensor:
    """The negative."""
    return tf.constant(255, tf.uint8) - pixels


def solarize(pixels: tf.Tensor, threshold: tf.Tensor | float) -> tf.Tensor:
    """The negative of values that are at least `threshold`; 256 leaves all as they are."""
    values = tf.cast(pixels, tf.float32)
    return tf.cast(tf.abs(values - 255.0 * tf.cast(values >= threshold, tf.float32)), tf.uint8)


def solarize_add(pixels: tf.Tensor, addition: tf.Tensor | float) -> tf.Tensor:
    """Adds `addition` to values under 128, clipped to 255 (Pillow has no such op)."""
    values = tf.cast(pixels, tf.float32)
    added = values + addition * tf.cast(values < 128.0, tf.float32)
    return tf.cast(tf.minimum(added, 255.0), tf.uint8)


def posterize(pixels: tf.Tensor, bits: tf.Tensor | float) -> tf.Tensor:
    """Keeps only the highest `bits` of each value, 0 to 8 of them."""
    mask = 256.0 - 2.0 ** (8.0 - bits)
    return tf.bitwise.bitwise_and(pixels, tf.cast(mask, tf.uint8))


def autocontrast(pixels: tf.Tensor) -> tf.Tensor:
    """Stretches each channel to reach from 0 to 255; one of a single value stays as it is.

    Rounded down from the exact quotient; Pillow, which rounds its scale, is sometimes one less.
    """
    low = tf.cast(tf.reduce_min(pixels, axis=(0, 1)), tf.float32)
    high = tf.cast(tf.reduce_max(pixels, axis=(0, 1)), tf.float32)
    is_flat = tf.cast(low == high, tf.float32)
    low, extent = low * (1 - is_flat), high - low + 255 * is_flat
    values = tf.cast(_rows(pixels), tf.float32)
    stretched = (values - _row(low, pixels)) * 255.0 / _row(extent, pixels)
    return tf.reshape(tf.cast(stretched, tf.uint8), tf.shape(pixels))


def equalize(pixels: tf.Tensor) -> tf.Tensor:
    """Spreads each channel's values so that all are about equally frequent."""
    values = tf.cast(pixels, tf.int32)
    tables = [_equalizing(channel) for channel in tf.unstack(values, axis=-1)]
    places = _rows(values) + _row(tf.constant([0, 256, 512]), pixels)
    return tf.reshape(tf.gather_nd(tf.concat(tables, 0), places[..., None]), tf.shape(pixels))


def _equalizing(channel: tf.Tensor) -> tf.Tensor:
    """The new value for each value of a channel: int32 [H, W] -> uint8 [256]."""
    frequencies = tf.histogram_fixed_width(channel, [0, 255], nbins=256)
    highest_count = frequencies[tf.reduce_max(channel)]
    step = (tf.size(channel) - highest_count) // 255
    lower = tf.cumsum(frequencies, exclusive=True)
    spread = tf.minimum((lower + step // 2) // tf.maximum(step, 1), 255)
    # Too few pixels, or a single value, cannot be spread.
    return tf.cast(tf.where(step > 0, spread, tf.range(256)), tf.uint8)


# What is different for each channel goes along rows of W * 3 values: TensorFlow is slow at
# repeating three values over every pixel.


def _rows(values: tf.Tensor) -> tf.Tensor:
    """[H, W, 3] -> [H, W * 3]."""
    return tf.reshape(values, [tf.shape(values)[0], -1])


def _row(channel_values: tf.Tensor, pixels: tf.Tensor) -> tf.Tensor:
    """[3] -> [W * 3] for pixels [H, W, 3]."""
    return tf.tile(channel_values, [tf.shape(pixels)[1]])


GRAY = 128
# Fraction of a pixel. Without it, rounding errors would choose between two pixels where a point is
# on their border, as the whole diagonals do in a rotation by 45 degrees.
TO_THE_RIGHT = 2.0**-10


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


def translate_by_width(pixels: tf.Tensor, part: tf.Tensor) -> tf.Tensor:
    """Takes pixels from a part of the width further to the right."""
    return translate_x(pixels, part * tf.cast(tf.shape(pixels)[1], tf.float32))


def translate_by_height(pixels: tf.Tensor, part: tf.Tensor) -> tf.Tensor:
    """Takes pixels from a part of the height further down."""
    return translate_y(pixels, part * tf.cast(tf.shape(pixels)[0], tf.float32))


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
        tf.cast(tf.floor((of_x * x + of_y * y) + (constant + start + TO_THE_RIGHT)), tf.int32)
        for (of_x, of_y, constant), start in zip((x_from, y_from), origin, strict=True)
    )
    is_inside = (columns >= 0) & (columns < width) & (rows >= 0) & (rows < height)
    places = tf.where(is_inside, rows * width + columns, height * width)
    with_gray = tf.concat(
        [tf.reshape(pixels, [-1, 3]), tf.fill([1, 3], tf.constant(GRAY, tf.uint8))], 0
    )
    return tf.gather_nd(with_gray, places[..., None])


def interpolated(
    pixels: tf.Tensor,
    x_from: tuple[tf.Tensor | float, ...],
    y_from: tuple[tf.Tensor | float, ...],
    *,
    is_cubic: tf.Tensor | bool = True,
    fill: tf.Tensor | int = GRAY,
) -> tf.Tensor:
    """Does what `affine` does, by Pillow's cubic (a = -1) or linear interpolation, from the corner.

    What lies outside becomes `fill`, one value or three. In double precision, as there: where a
    point lies on a pixel, the last bit decides what is rounded down.
    """
    height, width = tf.unstack(tf.shape(pixels)[:2])
    x = tf.range(tf.cast(width, tf.float64)) + 0.5
    y = tf.range(tf.cast(height, tf.float64))[:, None] + 0.5
    at = [sum(tf.cast(k, tf.float64) * v for k, v in zip(row, (x, y, 1.0), strict=True))
          for row in (x_from, y_from)]  # fmt: skip
    sides = [tf.cast(side, tf.float64) for side in (width, height)]
    inside = [(v >= 0) & (v < side) for v, side in zip(at, sides, strict=True)]
    before = [tf.floor(v - 0.5) for v in at]
    parts = [(v - 0.5 - low)[..., None] for v, low in zip(at, before, strict=True)]
    columns, rows = (tf.cast(low, tf.int32) for low in before)

    def neighbour(right: int, down: int) -> tf.Tensor:
        places = tf.clip_by_value(rows + down, 0, height - 1) * width
        places += tf.clip_by_value(columns + right, 0, width - 1)
        return tf.cast(tf.gather(tf.reshape(pixels, [-1, 3]), places), tf.float64)

    def from_16() -> tf.Tensor:
        across = (-1, 0, 1, 2)
        lines = [cubic([neighbour(i, j) for i in across], parts[0]) for j in across]
        return cubic(lines, parts[1])

    def from_4() -> tf.Tensor:
        upper, lower = (
            (left := neighbour(0, j)) + (neighbour(1, j) - left) * parts[0] for j in (0, 1)
        )
        return upper + (lower - upper) * parts[1]

    values = tf.cond(tf.convert_to_tensor(is_cubic), from_16, from_4)
    values = tf.cast(tf.clip_by_value(values, 0.0, 255.0), tf.uint8)
    return tf.where((inside[0] & inside[1])[..., None], values, tf.cast(fill, tf.uint8))


def cubic(values: Sequence[Any], part: Any) -> Any:
    """The value at `part` of the way from the second of four values to the third. TF's or JAX's."""
    p, q, r, s = values
    return q + part * (r - p + part * (2 * (p - q) + r - s + part * (q - p + s - r)))


def cutout(pixels: tf.Tensor, half_side_px: tf.Tensor | float, centre: tf.Tensor) -> tf.Tensor:
    """Covers a square of 2 * `half_side_px` about `centre` (y and x in [0, 1)) with gray.

    The part outside of the image is cut off. DeVries and Taylor (arXiv 1708.04552).
    """
    size = tf.shape(pixels)[:2]
    middle = tf.cast(centre * tf.cast(size, tf.float32), tf.int32)
    half_side = tf.cast(half_side_px, tf.int32)
    begin = tf.maximum(middle - half_side, 0)
    extent = tf.minimum(middle + half_side, size) - begin
    return paste(pixels, tf.fill(tf.concat([extent, [3]], 0), tf.constant(GRAY, tf.uint8)), begin)


def paste(pixels: tf.Tensor, patch: tf.Tensor, begin: tf.Tensor) -> tf.Tensor:
    """Pastes `patch`, uint8 [h, w, 3], over the pixels from `begin` on, (top, left)."""
    top, left = tf.unstack(begin)
    bottom, right = tf.unstack(begin + tf.shape(patch)[:2])
    middle = tf.concat([pixels[top:bottom, :left], patch, pixels[top:bottom, right:]], 1)
    return tf.concat([pixels[:top], middle, pixels[bottom:]], 0)


def sharpness(
    pixels: tf.Tensor, factor: tf.Tensor | float, *, rounds_down: bool = False
) -> tf.Tensor:
    """Blends with a smoothed image, as Pillow's ImageEnhance.Sharpness: factor 1 gives the image.

    Pixels at the border stay as they are, and so does an image of fewer than three rows or columns.
    `rounds_down`: the smoothed image is rounded down, as in AutoAugment's TensorFlow code.
    """
    has_inside = tf.reduce_min(tf.shape(pixels)[:2]) >= 3
    smoothed = _smoothed_down if rounds_down else _smoothed

    def sharpened() -> tf.Tensor:
        values = tf.cast(pixels, tf.float32)
        inside = blend(smoothed(values), values[1:-1, 1:-1], factor)
        return paste(pixels, inside, tf.constant([1, 1]))

    return tf.cond(has_inside, sharpened, lambda: pixels)


# Weights 1 1 1, 1 5 1, 1 1 1, over 13, where all neighbours exist: [H, W, 3] -> [H - 2, W - 2, 3].


def _smoothed(values: tf.Tensor) -> tf.Tensor:
    rows = values[:-2] + values[1:-1] + values[2:]
    sums = rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:] + 4 * values[1:-1, 1:-1]
    return tf.round(sums / 13)  # a sum of whole numbers is never halfway between two


def _smoothed_down(values: tf.Tensor) -> tf.Tensor:
    """The same as a convolution; where the mean is a whole number, rounding errors decide."""
    weights = tf.constant([[1, 1, 1], [1, 5, 1], [1, 1, 1]], tf.float32) / 13
    kernel = tf.tile(weights[:, :, None, None], [1, 1, 3, 1])
    return tf.floor(tf.nn.depthwise_conv2d(values[None], kernel, [1, 1, 1, 1], "VALID")[0])


def gaussian_blur(pixels: tf.Tensor, sigma: tf.Tensor | float) -> tf.Tensor:
    """Convolves with a Gaussian of `sigma` pixels; at the border, with the part of it inside.

    Its cost grows with the cube of the side, so it belongs behind the crop.
    """
    values = tf.cast(pixels, tf.float32)
    for _ in range(2):
        values = tf.transpose(_blurred_along_first(values, sigma), [1, 0, 2])
    return tf.cast(values, tf.uint8)


def _blurred_along_first(values: tf.Tensor, sigma: tf.Tensor | float) -> tf.Tensor:
    """Blurs whole numbers 0..255, float32 [N, M, 3], along N."""
    shape = tf.shape(values)
    places = tf.range(tf.cast(shape[0], tf.float32))
    distances = (places[:, None] - places) / sigma
    # In whole 65536ths, so that the product's sums stay under 2**24: they are exact, and do not
    # depend on the order of summation.
    weights = tf.round(2**16 * tf.nn.softmax(-0.5 * distances**2))
    sums = weights @ tf.reshape(values, [shape[0], -1])
    means = sums / tf.reduce_sum(weights, axis=1, keepdims=True)
    return tf.reshape(tf.floor(means + 0.5), shape)
