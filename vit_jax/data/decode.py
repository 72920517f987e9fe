"""Encoded image files to RGB pixels: whole images, or a window of them.

JPEG, PNG, GIF (its first frame), WebP and BMP. Grayscale, palettes, CMYK and 16 bits become
8-bit RGB; alpha is dropped, not composited, as Pillow's `convert("RGB")` does. Inside the pipeline
as outside, an image that cannot be decoded raises tf.errors.InvalidArgumentError.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from vit_jax.data.example import Example
from vit_jax.data.header import stored_size
from vit_jax.data.host_tf import tf

_JPEG = b"\xff\xd8\xff"
_DCT = "INTEGER_ACCURATE"  # what Pillow uses; TensorFlow's default saved no time

_SCALES = (1, 2, 4, 8)  # by which a JPEG decoder may shrink an image: it leaves out frequencies


class Encoded(NamedTuple):
    """An image file and what its header says. Scalars and a vector: tensors or plain values."""

    data: tf.Tensor | bytes
    size: tf.Tensor | tuple[int, int]  # int32 [2], height and width when shown upright
    orientation: tf.Tensor | int  # int32, EXIF: 1..8


UNDECODABLE = Encoded(b"", (0, 0), 1)


def encoded(example: Example, max_image_pixels: int) -> Encoded | str:
    """The example's image ready to be decoded; a reason why not, if its header gives one."""
    if example.fault:
        return example.fault
    data, orientation = example.image, example.orientation
    size = stored_size(data)
    if size is None:
        return (
            "not a JPEG, PNG, GIF, still WebP or true-colour BMP file"
            if data
            else "the file is empty"
        )
    if size[0] * size[1] > max_image_pixels:
        return f"{size[0]} x {size[1]} pixels exceed input.max_image_pixels={max_image_pixels}"
    return Encoded(data, size[::-1] if orientation >= 5 else size, orientation)


def decode(image: Encoded) -> tf.Tensor:
    """The whole image, upright: uint8 [H, W, 3]."""
    return _upright(_decode_stored(image.data), image.orientation)


def decode_window(
    image: Encoded, window: tf.Tensor, *, at_least: tuple[float, float] | None = None
) -> tf.Tensor:
    """Pixels of `window` (top, left, height, width of the upright image): uint8 [h, w, 3].

    Of a complete JPEG only the window is decoded. One without its end marker is decoded as a whole,
    so that a truncated file is found whichever window is asked for. With `at_least` (height, width)
    a JPEG's window is decoded at 1/2, 1/4 or 1/8 of its size, if it is still as large as that.
    """
    scale = tf.constant(1) if at_least is None else _largest_scale(window, at_least)
    is_jpeg = tf.strings.substr(image.data, 0, 3) == _JPEG
    is_complete = tf.strings.substr(image.data, -2, 2) == b"\xff\xd9"

    def jpeg(window: tf.Tensor, ratio: int) -> tf.Tensor:
        begin, end = ((corner + ratio // 2) // ratio for corner in (window[:2], _end(window)))
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

    # What nearly every image is, comes first: asking all questions one by one takes CPU time.
    is_upright = image.orientation <= 1
    return tf.cond(is_jpeg & is_complete & is_upright, lambda: jpeg_of_scale(window), stored)


def _end(window: tf.Tensor) -> tf.Tensor:
    return window[:2] + window[2:]


def _largest_scale(window: tf.Tensor, at_least: tuple[float, float]) -> tf.Tensor:
    """The largest of the scales by which a window may shrink, int32 []."""
    room = tf.reduce_min(tf.cast(window[2:], tf.float32) / tf.constant(at_least, tf.float32))
    scales = tf.constant(_SCALES)
    return tf.reduce_max(tf.where(tf.cast(scales, tf.float32) <= room, scales, 1))


def crop(pixels: tf.Tensor, window: tf.Tensor) -> tf.Tensor:
    """Pixels of `window` (top, left, height, width): [H, W, 3] -> [h, w, 3]."""
    return tf.slice(pixels, tf.concat([window[:2], [0]], 0), tf.concat([window[2:], [3]], 0))


def _decode_stored(data: tf.Tensor) -> tf.Tensor:
    def jpeg() -> tf.Tensor:
        return tf.io.decode_jpeg(data, channels=3, dct_method=_DCT)

    def webp() -> tf.Tensor:  # three channels cannot be asked for if there are four
        pixels = tf.io.decode_image(data, channels=0, expand_animations=False)
        return tf.ensure_shape(pixels, [None, None, None])[:, :, :3]

    def other() -> tf.Tensor:
        return tf.io.decode_image(data, channels=3, expand_animations=False)

    signature = tf.strings.substr(data, 0, 4)
    is_jpeg = tf.strings.substr(data, 0, 3) == _JPEG
    pixels = tf.cond(is_jpeg, jpeg, lambda: tf.cond(signature == b"RIFF", webp, other))
    return tf.ensure_shape(pixels, [None, None, 3])


# EXIF orientation (Exif 2.3, tag 274): what is stored becomes upright by a transposition (5..8),
# then a flip along the width (2, 3, 6, 7), then one along the height (3, 4, 7, 8).


def _flips(orientation: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """(transposed, flipped along the width, flipped along the height), each bool []."""
    by_orientation = tf.constant(
        [
            [False, False, False],  # 0 is no orientation; taken as upright
            [False, False, False],
            [False, True, False],
            [False, True, True],
            [False, False, True],
            [True, False, False],
            [True, True, False],
            [True, True, True],
            [True, False, True],
        ]
    )
    row = by_orientation[orientation]
    return row[0], row[1], row[2]


def _upright(pixels: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    def turn() -> tf.Tensor:
        transposed, flipped_x, flipped_y = _flips(orientation)
        x = tf.cond(transposed, lambda: tf.transpose(pixels, [1, 0, 2]), lambda: pixels)
        x = tf.cond(flipped_x, lambda: x[:, ::-1], lambda: x)
        return tf.cond(flipped_y, lambda: x[::-1], lambda: x)

    return tf.cond(orientation > 1, turn, lambda: pixels)


def _stored_window(window: tf.Tensor, image: Encoded) -> tf.Tensor:
    """Where the pixels of an upright window are stored: int32 [4] -> int32 [4]."""
    transposed, flipped_x, flipped_y = _flips(image.orientation)
    height, width = image.size[0], image.size[1]
    top = tf.where(flipped_y, height - window[0] - window[2], window[0])
    left = tf.where(flipped_x, width - window[1] - window[3], window[1])
    upright = tf.stack([top, left, window[2], window[3]])
    return tf.where(transposed, tf.gather(upright, [1, 0, 3, 2]), upright)
