"""Crops and flips: a window of an image, at random or in the middle, and its mirror image."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from vit_jax.data.host_tf import tf
from vit_jax.data.ops.decode import crop, decode_window
from vit_jax.data.ops.op import (
    KnownSize,
    OnDevice,
    Op,
    Size,
    check,
    check_choice,
    check_colour,
    check_pixels,
    pair,
    same_size,
)
from vit_jax.data.ops.resizing import nearest_values, resizer
from vit_jax.data.reader import Encoded

_ASPECTS = (3 / 4, 4 / 3)  # width by height, of the windows of both crops
_TRIES = 10


def inception_crop(
    size: Size,
    area_min: float = 0.05,
    area_max: float = 1.0,
    reduced: float | None = None,
    method: str = "bilinear",
    antialias: bool = False,
    levels: str = "nearest",
) -> Op:
    """Resizes a random window of `area_min` to `area_max` of the image, 3/4 to 4/3 in aspect.

    Right after `decode`, only the window is decoded; with `reduced`, of a JPEG at 1/2, 1/4 or 1/8
    of its size if `reduced` times `size` pixels are left, which is quicker for large images.
    `method`, `antialias` and `levels` mean the same as in `resize`.

    Szegedy et al., Going Deeper with Convolutions (arXiv 1409.4842), section 6.
    """
    resized = resizer(method, antialias, levels)
    return _cropped_and_resized(
        inception_window,
        lambda pixels, seed: resized(pixels, pair(size)),
        pair(size),
        (area_min, area_max),
        reduced,
    )


def random_resized_crop(
    size: Size,
    area_min: float = 0.08,
    area_max: float = 1.0,
    method: str = "bilinear",
    reduced: float | None = None,
) -> Op:
    """Like `inception_crop`, but draws and resizes the window as torchvision and timm do.

    Areas are uniform, aspects by their logarithms, and it filters when it shrinks. `method` is one
    of `resize`, or random: bilinear or bicubic, equally often, as timm's default is.
    """
    choices = ("bilinear", "bicubic") if method == "random" else (method, method)
    first, second = (resizer(chosen, True, "nearest", others=("random",)) for chosen in choices)

    def resized(pixels: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        if method != "random":
            return first(pixels, pair(size))
        coin = tf.random.experimental.stateless_fold_in(seed, 1)  # the window has drawn from seed
        is_bicubic = tf.random.stateless_uniform([], coin) < 0.5
        return tf.cond(
            is_bicubic, lambda: second(pixels, pair(size)), lambda: first(pixels, pair(size))
        )

    return _cropped_and_resized(
        resized_crop_window, resized, pair(size), (area_min, area_max), reduced
    )


def central_crop(size: Size, middle: str = "down", fill: tuple[int, int, int] | None = None) -> Op:
    """The `size` pixels in the middle. A smaller image is a bad image, or padded.

    Of an odd number of pixels left over, `middle` cuts off the smaller half above and to the left
    ("down"), or the nearest whole number to the half, the even one ("nearest", as torchvision).
    `fill`: red, green and blue of what is put around an image that is smaller, as timm does.
    """
    height, width = pair(size)
    check_choice("middle", middle, ("down", "nearest"))
    if fill is not None:
        check_colour("each of three numbers of fill", fill)

    def apply(pixels: tf.Tensor, seed: tf.Tensor, fill: Any = fill) -> tf.Tensor:
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

    on_map = apply if fill is None else functools.partial(apply, fill=(0,))
    return Op(apply, output_size, is_random=False, on_map=on_map, any_channels=fill is None)


def pad_crop(size: Size, padding: int, reflect: bool = False) -> Op:
    """Pads every side with `padding` pixels of black, then takes a random window of `size`.

    The usual augmentation for CIFAR (arXiv 1409.5185). With `reflect`, pads with the mirror image:
    the simple random crop of DeiT III (arXiv 2204.07118).
    """
    height, width = pair(size)
    check_pixels("padding", padding, at_least=0)
    mode = "REFLECT" if reflect else "CONSTANT"

    def apply(pixels: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        padded = tf.pad(pixels, [[padding, padding], [padding, padding], [0, 0]], mode)
        places = tf.cast(_room(padded, (height, width)) + 1, tf.float32)
        begin = tf.cast(tf.random.stateless_uniform([2], seed) * places, tf.int32)
        return crop(padded, tf.concat([begin, [height, width]], 0))

    def on_device(pixels: jax.Array, draws: jax.Array) -> jax.Array:
        margins = ((padding, padding), (padding, padding), (0, 0))
        padded = jnp.pad(pixels, margins, mode="reflect" if reflect else "constant")
        places = jnp.array([padded.shape[0] - height + 1, padded.shape[1] - width + 1], jnp.float32)
        begin = (draws * places).astype(jnp.int32)
        return jax.lax.dynamic_slice(padded, (begin[0], begin[1], 0), (height, width, 3))

    def output_size(before: KnownSize) -> KnownSize:
        shorter = min(before) if isinstance(before, tuple) else before
        if reflect and shorter is not None and padding >= shorter:
            raise ValueError(f"reflects {padding} pixels of {shorter}: pad by fewer than there are")
        return _cropped_size(before, (height, width), padding=padding)

    return Op(
        apply,
        output_size,
        largest=lambda before: tf.reduce_prod(before + 2 * padding),
        on_device=OnDevice(2, on_device),
        on_map=apply,
        any_channels=True,
    )


def crop_border(pixels: int) -> Op:
    """Cuts so many pixels off at each side. An image of which nothing is left is a bad image."""
    check_pixels("pixels", pixels, at_least=1)
    cut = 2 * pixels

    def apply(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        left = tf.shape(image)[:2] - cut
        message = f"the image is smaller than its border of {pixels} pixels"
        with tf.control_dependencies([tf.debugging.assert_positive(left, message)]):
            return image[pixels:-pixels, pixels:-pixels]

    def output_size(before: KnownSize) -> KnownSize:
        if before is None:
            return None
        shorter = before if isinstance(before, int) else min(before)
        if shorter <= cut:
            raise ValueError(f"leaves nothing of {shorter} pixels: cut off fewer")
        return before - cut if isinstance(before, int) else (before[0] - cut, before[1] - cut)

    return Op(apply, output_size, is_random=False, on_map=apply, any_channels=True)


def flip_lr() -> Op:
    """Mirrors along the width, every second image on average."""

    def apply(pixels: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        return tf.image.stateless_random_flip_left_right(pixels, seed)

    def on_device(pixels: jax.Array, draws: jax.Array) -> jax.Array:
        return jnp.where(draws[0] < 0.5, pixels[:, ::-1], pixels)

    return same_size(apply, OnDevice(1, on_device), on_map=apply, any_channels=True)


def _cropped_and_resized(
    window: Callable[[tf.Tensor, tf.Tensor, float, float], tf.Tensor],
    resized: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    size: tuple[int, int],
    areas: tuple[float, float],
    reduced: float | None,
) -> Op:
    """A random window, then what makes `size` of it; ValueError for `areas` and `reduced`."""
    are_numbers = all(type(area) in (int, float) for area in areas)
    check(
        are_numbers and 0 < areas[0] <= areas[1] <= 1,
        "area_min and area_max must be numbers, 0 < area_min <= area_max <= 1",
    )
    check(
        reduced is None or (type(reduced) in (int, float) and 0 < reduced <= 8),
        "reduced must be None or a number in (0, 8]",
    )
    at_least = None if reduced is None else (max(1, reduced * size[0]), max(1, reduced * size[1]))

    def decoded(image: Encoded, seed: tf.Tensor) -> tf.Tensor:
        pixels = decode_window(image, window(image.size, seed, *areas), at_least=at_least)
        return resized(pixels, seed)

    def apply(pixels: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        return resized(crop(pixels, window(tf.shape(pixels)[:2], seed, *areas)), seed)

    def on_map(values: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        return nearest_values(crop(values, window(tf.shape(values)[:2], seed, *areas)), size)

    rest: Any = {"decode": decoded, "on_map": on_map, "any_channels": True}
    return Op(apply, output_size=lambda _: size, **rest)


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


def _padded(pixels: tf.Tensor, size: tuple[int, int], fill: tuple[int, int, int]) -> tf.Tensor:
    """Pads to at least `size`, image in the middle; the larger half goes below and to the right."""
    missing = tf.maximum(tf.constant(size) - tf.shape(pixels)[:2], 0)
    before = missing // 2
    margins = tf.concat([tf.stack([before, missing - before], 1), [[0, 0]]], 0)
    inside = tf.pad(tf.ones_like(pixels[:, :, :1], tf.bool), margins)
    padded = tf.where(inside, tf.pad(pixels, margins), tf.constant(fill, pixels.dtype))
    return tf.ensure_shape(padded, [None, None, pixels.shape[-1]])


def _room(pixels: tf.Tensor, size: tuple[int, int]) -> tf.Tensor:
    """The distance a window of `size` can move, int32 [2]; fails if it is larger than the image."""
    room = tf.shape(pixels)[:2] - size
    message = f"the image is smaller than the crop of {size[0]} x {size[1]} pixels"
    with tf.control_dependencies([tf.debugging.assert_non_negative(room, message)]):
        return tf.identity(room)


# Windows at random: (top, left, height, width), int32 [4], of a size and a seed.


def inception_window(
    size: tf.Tensor, seed: tf.Tensor, area_min: float, area_max: float
) -> tf.Tensor:
    """A window as TensorFlow draws it: uniform aspect; another size for one that is too large."""
    begin, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
        tf.concat([size, [3]], 0),
        tf.zeros([1, 0, 4]),  # no object that the window has to cover
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

    The first of ten that fits into the image is taken; if none fits, the largest window in the
    middle whose aspect is allowed.
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
