"""Mixes pixels with their neighbours: uint8 [H, W, 3] -> uint8 [H, W, 3]."""

from vit_jax.data.host_tf import tf
from vit_jax.data.ops import colours, geometry


def sharpness(
    pixels: tf.Tensor, factor: tf.Tensor | float, *, rounds_down: bool = False
) -> tf.Tensor:
    """Blends with a smoothed image: factor 0 gives the smoothed one, 1 the image, 2 a sharper one.

    Equal to Pillow's ImageEnhance.Sharpness. Pixels at the border, which lack neighbours, stay as
    they are, and so does an image of fewer than three rows or columns. With `rounds_down` the
    smoothed image is rounded down to whole numbers, as in AutoAugment's TensorFlow code.
    """
    has_inside = tf.reduce_min(tf.shape(pixels)[:2]) >= 3
    smoothed = _smoothed_down if rounds_down else _smoothed

    def sharpened() -> tf.Tensor:
        values = tf.cast(pixels, tf.float32)
        inside = colours.blend(smoothed(values), values[1:-1, 1:-1], factor)
        return geometry.paste(pixels, inside, tf.constant([1, 1]))

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
