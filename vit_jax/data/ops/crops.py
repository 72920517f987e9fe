"""Crops and flips of decoded images."""

from vit_jax.data.host_tf import tf
from vit_jax.data.ops.decode import crop
from vit_jax.data.ops.op import (
    KnownSize,
    Op,
    Size,
    check,
    check_choice,
    check_pixels,
    pair,
    same_size,
)


def central_crop(size: Size, middle: str = "down", fill: tuple[int, int, int] | None = None) -> Op:
    """The `size` pixels in the middle. A smaller image is a bad image, or padded.

    Of an odd number of pixels left over, `middle` cuts off the smaller half above and to the left
    ("down"), or the nearest whole number to the half, the even one ("nearest", as torchvision).
    `fill`: red, green and blue of what is put around an image that is smaller, as timm does.
    """
    height, width = pair(size)
    check_choice("middle", middle, ("down", "nearest"))
    check(
        fill is None
        or (isinstance(fill, tuple) and len(fill) == 3 and all(_is_level(x) for x in fill)),
        "fill must be three whole numbers from 0 to 255, or None",
    )

    def apply(pixels: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        if fill is not None:
            pixels = _padded(pixels, (height, width), fill)
        room = _room(pixels, (height, width))
        # Half of an odd number is between two whole ones; that of 3, 7, 11 ... is rounded up, to
        # the even one.
        begin = room // 2 if middle == "down" else (room + (room % 4) // 2) // 2
        return crop(pixels, tf.concat([begin, [height, width]], 0))

    def output_size(before: KnownSize) -> KnownSize:
        if fill is not None:
            return height, width
        return _cropped_size(before, (height, width), padding=0)

    return Op(apply, output_size)


def pad_crop(size: Size, padding: int, reflect: bool = False) -> Op:
    """Pads every side with `padding` pixels of black, then takes a random window of `size`.

    The usual augmentation for CIFAR: Lee et al., Deeply-Supervised Nets (arXiv 1409.5185). With
    `reflect`, the image's mirror image instead of black, which an image with a side of at most
    `padding` pixels is too small for: the simple random crop of DeiT III (arXiv 2204.07118).
    """
    height, width = pair(size)
    check_pixels("padding", padding, at_least=0)
    check(type(reflect) is bool, "reflect must be True or False")
    mode = "REFLECT" if reflect else "CONSTANT"

    def apply(pixels: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        padded = tf.pad(pixels, [[padding, padding], [padding, padding], [0, 0]], mode)
        places = tf.cast(_room(padded, (height, width)) + 1, tf.float32)
        begin = tf.cast(tf.random.stateless_uniform([2], seed) * places, tf.int32)
        return crop(padded, tf.concat([begin, [height, width]], 0))

    def output_size(before: KnownSize) -> KnownSize:
        shorter = min(before) if isinstance(before, tuple) else before
        if reflect and shorter is not None and padding >= shorter:
            raise ValueError(f"reflects {padding} pixels of {shorter}: pad by fewer than there are")
        return _cropped_size(before, (height, width), padding=padding)

    return Op(
        apply,
        output_size=output_size,
        largest=lambda before: tf.reduce_prod(before + 2 * padding),
    )


def flip_lr() -> Op:
    """Mirrors along the width, every second image on average."""
    return same_size(tf.image.stateless_random_flip_left_right)


def _cropped_size(before: KnownSize, size: tuple[int, int], *, padding: int) -> tuple[int, int]:
    """`size`; ValueError where a padded image of `before` can never hold it."""
    if before is None:
        return size
    if isinstance(before, int):
        fits, known = min(size) <= before + 2 * padding, f"{before} pixels on the shorter side"
    else:
        fits = all(s <= b + 2 * padding for s, b in zip(size, before, strict=True))
        known = f"{before[0]} x {before[1]} pixels"
    if not fits:
        padded = f" and a padding of {padding}" if padding else ""
        raise ValueError(f"asks for {size[0]} x {size[1]} of {known}{padded}: make it smaller")
    return size


def _is_level(value: object) -> bool:
    return type(value) is int and 0 <= value <= 255


def _padded(pixels: tf.Tensor, size: tuple[int, int], fill: tuple[int, int, int]) -> tf.Tensor:
    """Pads to at least `size`, image in the middle; the larger half goes below and to the right."""
    missing = tf.maximum(tf.constant(size) - tf.shape(pixels)[:2], 0)
    before = missing // 2
    margins = tf.concat([tf.stack([before, missing - before], 1), [[0, 0]]], 0)
    inside = tf.pad(tf.ones_like(pixels[:, :, :1], tf.bool), margins)
    return tf.where(inside, tf.pad(pixels, margins), tf.constant(fill, tf.uint8))


def _room(pixels: tf.Tensor, size: tuple[int, int]) -> tf.Tensor:
    """The distance a window of `size` can move, int32 [2]; fails if it is larger than the image."""
    room = tf.shape(pixels)[:2] - size
    message = f"the image is smaller than the crop of {size[0]} x {size[1]} pixels"
    with tf.control_dependencies([tf.debugging.assert_non_negative(room, message)]):
        return tf.identity(room)
