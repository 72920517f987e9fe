"""Windows of images at random: (top, left, height, width), int32 [4], of a size and a seed."""

from __future__ import annotations

import math

from vit_jax.data.host_tf import tf

_ASPECTS = (3 / 4, 4 / 3)  # width by height, of both
_TRIES = 10


def inception_window(
    size: tf.Tensor, seed: tf.Tensor, area_min: float, area_max: float
) -> tf.Tensor:
    """A window as TensorFlow draws it: aspects uniform; of one that is too large, another size."""
    begin, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
        tf.concat([size, [3]], 0),
        tf.zeros([1, 0, 4]),  # no object that has to be seen
        seed,
        min_object_covered=0.0,
        aspect_ratio_range=_ASPECTS,
        area_range=(area_min, area_max),
        max_attempts=100,
        use_image_if_no_bounding_boxes=True,
    )
    return tf.concat([begin[:2], extent[:2]], 0)


def resized_crop_window(
    size: tf.Tensor, seed: tf.Tensor, area_min: float, area_max: float
) -> tf.Tensor:
    """A window as torchvision's and timm's RandomResizedCrop draw it.

    The area is uniform, the aspect uniform by its logarithm. Of ten the first that lies within the
    image is taken, anywhere in it; without one the largest window in the middle whose aspect is
    allowed.
    """
    shortest, longest = (math.log(aspect) for aspect in _ASPECTS)
    draws = tf.random.stateless_uniform([_TRIES, 4], seed, dtype=tf.float64)
    sides = tf.cast(size, tf.float64)
    area = (area_min + (area_max - area_min) * draws[:, 0]) * tf.reduce_prod(sides)
    aspect = tf.exp(shortest + (longest - shortest) * draws[:, 1])
    extents = tf.round(tf.sqrt(tf.stack([area / aspect, area * aspect], axis=1)))
    fits = tf.reduce_all(extents <= sides, axis=1)
    first = tf.argmax(fits)
    begin = tf.floor(draws[first, 2:] * (sides - extents[first] + 1))

    largest = tf.minimum(sides, tf.round(sides[::-1] * (1 / _ASPECTS[0], _ASPECTS[1])))
    middle = (sides - largest) // 2
    window = tf.where(fits[first], [begin, extents[first]], [middle, largest])
    return tf.cast(tf.reshape(window, [4]), tf.int32)
