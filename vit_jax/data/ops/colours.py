"""Colours of pixels, one by one or by their statistics: uint8 [H, W, 3] -> uint8 [H, W, 3].

The arithmetic is Pillow's (ImageOps, ImageEnhance), to the bit unless it says otherwise. It is
spelled out in float32, which holds all these whole numbers: on a CPU, TensorFlow is slow at looking
bytes up in a table and at selecting them by `tf.where`.
"""

from vit_jax.data.host_tf import tf

_WHITE = tf.constant(255, tf.uint8)
# ITU-R 601-2 luma, in 65536ths.
_LUMA = (19595.0, 38470.0, 7471.0)


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
    weighted = values @ tf.constant([[weight] * 3 for weight in _LUMA])
    return tf.reshape(tf.floor((weighted + 2**15) / 2**16), tf.shape(pixels))


def grayscale(pixels: tf.Tensor) -> tf.Tensor:
    """The luma in all three channels."""
    return tf.cast(luma(pixels), tf.uint8)


def invert(pixels: tf.Tensor) -> tf.Tensor:
    """The negative."""
    return _WHITE - pixels


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

    Rounded down from the exact quotient. Pillow's is sometimes one less, where its scale is rounded
    and the quotient is a whole number.
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
    of_highest = frequencies[tf.reduce_max(channel)]
    step = (tf.size(channel) - of_highest) // 255
    lower = tf.cumsum(frequencies, exclusive=True)
    spread = tf.minimum((lower + step // 2) // tf.maximum(step, 1), 255)
    # Too few pixels, or a single value, cannot be spread.
    return tf.cast(tf.where(step > 0, spread, tf.range(256)), tf.uint8)


# What is different for each channel goes along rows of W * 3 values: TensorFlow is slow at
# repeating three values over every pixel.


def _rows(values: tf.Tensor) -> tf.Tensor:
    """[H, W, 3] -> [H, W * 3]."""
    return tf.reshape(values, [tf.shape(values)[0], -1])


def _row(of_channels: tf.Tensor, pixels: tf.Tensor) -> tf.Tensor:
    """[3] -> [W * 3] for pixels [H, W, 3]."""
    return tf.tile(of_channels, [tf.shape(pixels)[1]])
