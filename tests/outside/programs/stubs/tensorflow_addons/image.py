"""Projective transformations of tensorflow_addons.image: nearest pixel, 0 outside.

Each calls TensorFlow's own op, as the original does. Pixel (x, y) has its centre at (x, y).
"""

import numpy as np
import tensorflow as tf


def transform(images, transforms):
    """Output (x, y) shows input (a x + b y + c, d x + e y + f) for transforms [a b c d e f 0 0]."""
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=images[None],
        transforms=tf.reshape(tf.cast(tf.stack(transforms), tf.float32), [1, 8]),
        output_shape=tf.shape(images)[:2],
        fill_value=0.0,
        interpolation="NEAREST",
        fill_mode="CONSTANT",
    )[0]


def translate(images, translations):
    """Shifts images by (dx, dy) to the right and down."""
    dx, dy = translations
    return transform(images, [1.0, 0.0, -dx, 0.0, 1.0, -dy, 0.0, 0.0])


def rotate(images, angles):
    """Rotates counter-clockwise, in radians, about the mean of the first and the last pixel."""
    height, width = (float(size) - 1 for size in images.shape[:2])
    cos, sin = np.cos(float(angles)), np.sin(float(angles))
    x = (width - (cos * width - sin * height)) / 2
    y = (height - (sin * width + cos * height)) / 2
    return transform(images, [cos, -sin, x, sin, cos, y, 0.0, 0.0])
