"""Random erasing: a rectangle of noise (arXiv 1708.04896)."""

from __future__ import annotations

import math

from vit_jax.data.host_tf import tf
from vit_jax.data.ops import geometry
from vit_jax.data.ops.op import Op, check, check_number, sometimes

_TRIES = 10


def random_erasing(
    probability: float, area_min: float = 0.02, area_max: float = 0.4, aspect_min: float = 0.3
) -> Op:
    """A rectangle of `area_min` to `area_max` of the image, anywhere in it, of uniform noise.

    Its height is `aspect_min` to 1 / `aspect_min` of its width, drawn uniformly by its logarithm,
    so that neither side is favoured. Of ten rectangles the first that fits is taken. Defaults are
    the paper's for ImageNet, with a probability of 0.5; noise is its RE-R.
    """
    check_number("area_min", area_min, at_least=0, at_most=1)
    check_number("area_max", area_max, at_least=0, at_most=1)
    check(area_min <= area_max, "area_min must be at most area_max")
    check_number("aspect_min", aspect_min, at_least=0.01, at_most=1)

    def erased(pixels: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        of_window, of_noise = tf.unstack(tf.random.experimental.stateless_split(seed, 2))
        begin, extent = window(tf.shape(pixels)[:2], of_window)
        noise = tf.random.stateless_uniform(
            tf.concat([extent, [3]], 0), of_noise, maxval=256, dtype=tf.int32
        )
        covered = geometry.paste(pixels, tf.cast(noise, tf.uint8), begin)
        return tf.ensure_shape(covered, pixels.shape)

    def window(size: tf.Tensor, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """(top, left) and (height, width), int32 [2] each; 0 x 0 if none fits."""
        draws = tf.random.stateless_uniform([_TRIES, 4], seed)
        area = area_min + (area_max - area_min) * draws[:, 0]
        area *= tf.cast(tf.reduce_prod(size), tf.float32)
        aspect = tf.exp((2 * draws[:, 1] - 1) * math.log(aspect_min))
        sides = tf.stack([tf.sqrt(area * aspect), tf.sqrt(area / aspect)], axis=1)
        extents = tf.cast(tf.round(sides), tf.int32)
        fits = tf.reduce_all(extents <= size, axis=1)
        first = tf.argmax(fits)
        extent = extents[first] * tf.cast(fits[first], tf.int32)
        room = tf.cast(size - extent + 1, tf.float32)
        return tf.cast(draws[first, 2:] * room, tf.int32), extent

    return sometimes(probability, erased)
