"""Encoded image files to RGB pixels: whole images, or a window of them alone.

JPEG, PNG, GIF (its first frame), WebP and BMP. Grayscale, palettes, CMYK and 16 bits become
8-bit RGB; alpha is dropped, not composited, as Pillow's `convert("RGB")` does; other formats are
left to Pillow. Inside the pipeline as outside, an image that cannot be decoded raises
tf.errors.InvalidArgumentError.
"""

from __future__ import annotations

import functools
import io

import numpy as np

from vit_jax.data.host_tf import tf
from vit_jax.data.ops.op import Op, check, unchanged
from vit_jax.data.reader import BY_PILLOW, Encoded

_JPEG = b"\xff\xd8\xff"
_DCT = "INTEGER_ACCURATE"  # as in Pillow; TensorFlow's default is not faster
_SCALES = (1, 2, 4, 8)  # divisors of a JPEG decoder, which leaves out frequencies


def decode() -> Op:
    """Decodes the whole image, upright, as RGB."""
    return Op(
        apply=lambda pixels, seed: pixels,
        output_size=lambda size: None,
        decode=lambda image, seed: decode_image(image),
        is_random=False,
        on_map=unchanged,
        any_channels=True,
    )


def decode_image(image: Encoded) -> tf.Tensor:
    """The whole image, upright: uint8 [H, W, 3]."""
    return _upright(_decode_stored(image.data), image.orientation)


def decode_window(
    image: Encoded, window: tf.Tensor, *, at_least: tuple[float, float] | None = None
) -> tf.Tensor:
    """Pixels of `window` (top, left, height, width of the upright image): uint8 [h, w, 3].

    Only the window of a complete JPEG is decoded. One without its end marker is decoded as a whole,
    so that a truncated file is detected whichever window is asked for. With `at_least` (height,
    width) a JPEG's window is decoded at 1/2, 1/4 or 1/8 of its size, if at least that is left.
    """
    scale = tf.constant(1) if at_least is None else _largest_scale(window, at_least)
    is_jpeg = tf.strings.substr(image.data, 0, 3) == _JPEG
    is_complete = tf.strings.substr(image.data, -2, 2) == b"\xff\xd9"

    def jpeg(window: tf.Tensor, ratio: int) -> tf.Tensor:
        corners = (window[:2], window[:2] + window[2:])
        begin, end = ((corner + ratio // 2) // ratio for corner in corners)
        shrunk = tf.concat([begin, end - begin], 0)
        return tf.io.decode_and_crop_jpeg(
            image.data, shrunk, channels=3, ratio=ratio, dct_method=_DCT
        )

    def jpeg_of_scale(window: tf.Tensor) -> tf.Tensor:
        if at_least is None:
            return jpeg(window, 1)
        index = tf.argmax(tf.constant(_SCALES) == scale, output_type=tf.int32)
        return tf.switch_case(index, [functools.partial(jpeg, window, ratio) for ratio in _SCALES])

    def stored() -> tf.Tensor:
        inside = _stored_window(window, image)
        pixels = tf.cond(
            is_jpeg & is_complete,
            lambda: jpeg_of_scale(inside),
            lambda: crop(_decode_stored(image.data), inside),
        )
        return _upright(pixels, image.orientation)

    # The most common case comes first: testing all cases in turn takes CPU time.
    is_upright = image.orientation <= 1
    return tf.cond(is_jpeg & is_complete & is_upright, lambda: jpeg_of_scale(window), stored)


def _largest_scale(window: tf.Tensor, at_least: tuple[float, float]) -> tf.Tensor:
    room = tf.reduce_min(tf.cast(window[2:], tf.float32) / tf.constant(at_least, tf.float32))
    scales = tf.constant(_SCALES)
    return tf.reduce_max(tf.where(tf.cast(scales, tf.float32) <= room, scales, 1))


def crop(pixels: tf.Tensor, window: tf.Tensor) -> tf.Tensor:
    """Pixels of `window` (top, left, height, width): [H, W, C] -> [h, w, C]."""
    extent = tf.concat([window[2:], pixels.shape[-1:]], 0)
    return tf.slice(pixels, tf.concat([window[:2], [0]], 0), extent)


def _decode_stored(data: tf.Tensor) -> tf.Tensor:
    def jpeg() -> tf.Tensor:
        return tf.io.decode_jpeg(data, channels=3, dct_method=_DCT)

    def webp() -> tf.Tensor:  # three channels cannot be requested if there are four
        pixels = tf.io.decode_image(data, channels=0, expand_animations=False)
        return tf.ensure_shape(pixels, [None, None, None])[:, :, :3]

    def other() -> tf.Tensor:
        return tf.io.decode_image(data, channels=3, expand_animations=False)

    def pillow() -> tf.Tensor:
        return tf.ensure_shape(tf.numpy_function(_by_pillow, [data], tf.uint8), [None, None, None])

    is_jpeg = tf.strings.substr(data, 0, 3) == _JPEG
    is_webp = tf.strings.substr(data, 0, 4) == b"RIFF"
    is_for_pillow = tf.strings.substr(data, 0, len(BY_PILLOW)) == BY_PILLOW
    rest = lambda: tf.cond(is_webp, webp, lambda: tf.cond(is_for_pillow, pillow, other))
    return tf.ensure_shape(tf.cond(is_jpeg, jpeg, rest), [None, None, 3])


def _by_pillow(data: np.ndarray | bytes) -> np.ndarray:
    """The upright image: uint8 [H, W, 3]."""
    from vit_jax.core.image_files import open_image, rgb

    try:
        file = io.BytesIO(np.asarray(data, object).item()[len(BY_PILLOW) :])
        return np.asarray(rgb(open_image(file), upright=True))
    except Exception as error:  # decoders of damaged files raise anything
        reason = str(error) or type(error).__name__
        raise tf.errors.InvalidArgumentError(None, None, reason) from error


# EXIF orientation (Exif 2.3, tag 274): what is stored becomes upright by a transposition (5..8),
# then a flip along the width (2, 3, 6, 7), then one along the height (3, 4, 7, 8).


def _flips(orientation: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """(transposed, flipped along the width, flipped along the height), each bool []."""
    flipped_x, flipped_y = (
        tf.reduce_any(orientation == tf.constant(values)) for values in ((2, 3, 6, 7), (3, 4, 7, 8))
    )
    return orientation >= 5, flipped_x, flipped_y


def _upright(pixels: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    def turn() -> tf.Tensor:
        transposed, flipped_x, flipped_y = _flips(orientation)
        x = tf.cond(transposed, lambda: tf.transpose(pixels, [1, 0, 2]), lambda: pixels)
        x = tf.cond(flipped_x, lambda: x[:, ::-1], lambda: x)
        return tf.cond(flipped_y, lambda: x[::-1], lambda: x)

    return tf.cond(orientation > 1, turn, lambda: pixels)


def _stored_window(window: tf.Tensor, image: Encoded) -> tf.Tensor:
    """The stored window of an upright window: int32 [4] -> int32 [4]."""
    transposed, flipped_x, flipped_y = _flips(image.orientation)
    height, width = image.size[0], image.size[1]
    top = tf.where(flipped_y, height - window[0] - window[2], window[0])
    left = tf.where(flipped_x, width - window[1] - window[3], window[1])
    upright = tf.stack([top, left, window[2], window[3]])
    return tf.where(transposed, tf.gather(upright, [1, 0, 3, 2]), upright)


def white_level(level: int) -> Op:
    """Stretches the levels 0 to `level` to 0 to 255, rounded down; higher ones become white.

    For images that a data set holds in fewer levels, such as dSprites: black is 0 and white is 1.
    """
    check(type(level) is int and 1 <= level <= 255, "level must be a whole number from 1 to 255")

    def apply(pixels: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.cast(tf.minimum(pixels, level), tf.int32) * 255 // level, tf.uint8)

    return Op(apply, output_size=lambda size: size, is_random=False, on_map=unchanged)
