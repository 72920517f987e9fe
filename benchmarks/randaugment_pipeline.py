"""Images per CPU-second with RandAugment(2, 15), against the same in plain tf.data.

    python -m benchmarks.randaugment_pipeline --data_dir ../shared/data/photos

The plain pipeline crops, flips and then applies two of sixteen distortions, drawn by stateful
random numbers and chosen by `tf.switch_case`, written with the ops that TensorFlow has for them:
tf.image, histograms, a depthwise convolution, ImageProjectiveTransformV3. Both keep uint8 between
distortions. See pipelines.py for the method. Appends a row to
benchmarks/results/randaugment_pipeline.csv.
"""

import math
from collections.abc import Callable

from benchmarks import pipelines
from vit_jax.core import command
from vit_jax.data.host_tf import tf

_NUM_OPS, _MAGNITUDE = 2, 15
_LEVEL = _MAGNITUDE / 10
_FACTOR = 1.8 * _LEVEL + 0.1
_GRAY = 128


def main(_: list[str]) -> None:
    """Measures, prints and records."""
    crop_and_flip = f"decode|inception_crop({pipelines.SIZE_PX})|flip_lr"
    pipelines.compare(
        "randaugment_pipeline",
        f"{crop_and_flip}|randaugment({_NUM_OPS}, {_MAGNITUDE})",
        lambda data: plain_randaugment(pipelines.plain_crop_and_flip(data)),
    )


def plain_randaugment(image: tf.Tensor) -> tf.Tensor:
    """Two distortions of float32 [H, W, 3], from 0 to 255."""
    pixels = tf.cast(tf.round(image), tf.uint8)
    for _ in range(_NUM_OPS):
        chosen = tf.random.uniform([], maxval=len(DISTORTIONS), dtype=tf.int32)
        pixels = _distorted(pixels, chosen)
    return tf.cast(pixels, tf.float32)


def _distorted(pixels: tf.Tensor, chosen: tf.Tensor) -> tf.Tensor:
    return tf.switch_case(chosen, [lambda d=d: d(pixels) for d in DISTORTIONS])


def _blend(other: tf.Tensor, pixels: tf.Tensor) -> tf.Tensor:
    other, pixels = tf.cast(other, tf.float32), tf.cast(pixels, tf.float32)
    blended = other + _FACTOR * (pixels - other)
    return tf.cast(tf.clip_by_value(blended, 0.0, 255.0), tf.uint8)


def _autocontrast(pixels: tf.Tensor) -> tf.Tensor:
    def stretched(channel: tf.Tensor) -> tf.Tensor:
        low = tf.cast(tf.reduce_min(channel), tf.float32)
        high = tf.cast(tf.reduce_max(channel), tf.float32)
        values = tf.clip_by_value((tf.cast(channel, tf.float32) - low) * 255 / (high - low), 0, 255)
        return tf.cond(high > low, lambda: tf.cast(values, tf.uint8), lambda: channel)

    return tf.stack([stretched(channel) for channel in tf.unstack(pixels, axis=-1)], axis=-1)


def _equalize(pixels: tf.Tensor) -> tf.Tensor:
    def spread(channel: tf.Tensor) -> tf.Tensor:
        values = tf.cast(channel, tf.int32)
        histogram = tf.histogram_fixed_width(values, [0, 255], nbins=256)
        present = tf.boolean_mask(histogram, histogram > 0)
        step = (tf.reduce_sum(present) - present[-1]) // 255
        table = (tf.cumsum(histogram, exclusive=True) + step // 2) // tf.maximum(step, 1)
        table = tf.cast(tf.clip_by_value(table, 0, 255), tf.uint8)
        return tf.cond(step > 0, lambda: tf.gather(table, values), lambda: channel)

    return tf.stack([spread(channel) for channel in tf.unstack(pixels, axis=-1)], axis=-1)


def _posterize(pixels: tf.Tensor) -> tf.Tensor:
    shift = tf.constant(8 - int(4 * _LEVEL), tf.uint8)
    return tf.bitwise.left_shift(tf.bitwise.right_shift(pixels, shift), shift)


def _solarize(pixels: tf.Tensor) -> tf.Tensor:
    return tf.where(tf.cast(pixels, tf.int32) < int(256 * _LEVEL), pixels, 255 - pixels)


def _solarize_add(pixels: tf.Tensor) -> tf.Tensor:
    added = tf.clip_by_value(tf.cast(pixels, tf.int32) + int(110 * _LEVEL), 0, 255)
    return tf.where(pixels < 128, tf.cast(added, tf.uint8), pixels)


def _color(pixels: tf.Tensor) -> tf.Tensor:
    return _blend(tf.image.grayscale_to_rgb(tf.image.rgb_to_grayscale(pixels)), pixels)


def _contrast(pixels: tf.Tensor) -> tf.Tensor:
    mean = tf.reduce_mean(tf.cast(tf.image.rgb_to_grayscale(pixels), tf.float32))
    return _blend(tf.fill(tf.shape(pixels), mean), pixels)


def _brightness(pixels: tf.Tensor) -> tf.Tensor:
    return _blend(tf.zeros_like(pixels), pixels)


def _sharpness(pixels: tf.Tensor) -> tf.Tensor:
    kernel = tf.constant([[1, 1, 1], [1, 5, 1], [1, 1, 1]], tf.float32)[..., None, None] / 13
    values = tf.cast(pixels, tf.float32)[None]
    smooth = tf.nn.depthwise_conv2d(values, tf.tile(kernel, [1, 1, 3, 1]), [1] * 4, "VALID")[0]
    inside = tf.pad(tf.ones_like(smooth), [[1, 1], [1, 1], [0, 0]])
    smooth = tf.where(inside == 1, tf.pad(smooth, [[1, 1], [1, 1], [0, 0]]), values[0])
    return _blend(smooth, pixels)


def _affine(pixels: tf.Tensor, transform: list[tf.Tensor | float]) -> tf.Tensor:
    moved = tf.raw_ops.ImageProjectiveTransformV3(
        images=pixels[None],
        transforms=tf.stack([*transform, 0.0, 0.0])[None],
        output_shape=tf.shape(pixels)[:2],
        fill_value=float(_GRAY),
        interpolation="NEAREST",
        fill_mode="CONSTANT",
    )
    return tf.ensure_shape(moved[0], pixels.shape)


def _either_way(amount: float) -> tf.Tensor:
    return tf.where(tf.random.uniform([]) < 0.5, amount, -amount)


def _rotate(pixels: tf.Tensor) -> tf.Tensor:
    angle = _either_way(math.radians(30 * _LEVEL))
    cos, sin = tf.cos(angle), tf.sin(angle)
    y, x = ((side - 1) / 2 for side in pixels.shape[:2])
    return _affine(pixels, [cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y])


def _shear_x(pixels: tf.Tensor) -> tf.Tensor:
    return _affine(pixels, [1.0, _either_way(0.3 * _LEVEL), 0.0, 0.0, 1.0, 0.0])


def _shear_y(pixels: tf.Tensor) -> tf.Tensor:
    return _affine(pixels, [1.0, 0.0, 0.0, _either_way(0.3 * _LEVEL), 1.0, 0.0])


def _translate_x(pixels: tf.Tensor) -> tf.Tensor:
    return _affine(pixels, [1.0, 0.0, _either_way(100 * _LEVEL), 0.0, 1.0, 0.0])


def _translate_y(pixels: tf.Tensor) -> tf.Tensor:
    return _affine(pixels, [1.0, 0.0, 0.0, 0.0, 1.0, _either_way(100 * _LEVEL)])


def _cutout(pixels: tf.Tensor) -> tf.Tensor:
    height, width = pixels.shape[:2]
    y = tf.random.uniform([], maxval=height, dtype=tf.int32)
    x = tf.random.uniform([], maxval=width, dtype=tf.int32)
    half_side = int(40 * _LEVEL)
    rows = tf.abs(tf.range(height) - y) < half_side
    columns = tf.abs(tf.range(width) - x) < half_side
    covered = rows[:, None, None] & columns[None, :, None]
    return tf.where(covered, tf.constant(_GRAY, tf.uint8), pixels)


DISTORTIONS: tuple[Callable[[tf.Tensor], tf.Tensor], ...] = (
    _autocontrast, _equalize, lambda pixels: 255 - pixels, _rotate, _posterize, _solarize, _color,
    _contrast, _brightness, _sharpness, _shear_x, _shear_y, _translate_x, _translate_y, _cutout,
    _solarize_add,
)  # fmt: skip


if __name__ == "__main__":
    command.run(main)
