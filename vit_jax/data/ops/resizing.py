"""Images of another size: uint8 [H, W, 3] -> uint8 [h, w, 3].

An output pixel is a weighted mean of pixels about its centre. With antialias the kernel is as much
wider as the image shrinks, so that every pixel counts, as Pillow does; without, the kernel of an
enlargement samples the image. Where an image grows, both are the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from vit_jax.core.errors import nearest
from vit_jax.data.host_tf import tf
from vit_jax.data.ops.op import KnownSize, Op, Size, check, check_choice, check_pixels, pair

# TensorFlow's names. Antialias has no effect on nearest and area, which have their own footprint.
METHODS = {
    "nearest": "nearest",
    "bilinear": "bilinear",
    "bicubic": "bicubic",  # Keys' kernel with a = -1/2
    "lanczos": "lanczos3",
    "area": "area",  # the mean of what a pixel covers, pixels cut in parts
}
# Kernels that are partly negative, so that results overshoot black and white. With antialias they
# are applied in two passes, as in Pillow.
_TWO_PASSES = {"bicubic": "keyscubic", "lanczos": "lanczos3"}
LEVELS = ("nearest", "down")
# Pixels of an image, as a multiple of the resized one's, up to which it is sampled as floats: they
# take time and memory to make, whichever are sampled.
_MOST_FLOATS = 4


def resize(
    size: Size, method: str = "bilinear", antialias: bool = True, levels: str = "nearest"
) -> Op:
    """Resizes to exactly `size`, whatever the aspect.

    `method` is a name of METHODS; `antialias`: whether it filters where it shrinks; `levels`:
    values are rounded to the "nearest" level, or cut off as in big_vision: "down".
    """
    sides = pair(size)
    return _resize(
        lambda before: tf.constant(sides, tf.int64), lambda _: sides, method, antialias, levels
    )


def resize_small(
    size: Size,
    method: str = "bilinear",
    antialias: bool = True,
    levels: str = "nearest",
    longer: str = "nearest",
) -> Op:
    """Resizes the shorter side to `size` pixels, the longer one in proportion.

    With (height, width), in proportion too: as small as can be, but neither side below its number.
    `longer` says how the longer side becomes whole: the "nearest", or cut off, as torchvision does:
    "down". `method`, `antialias` and `levels` mean the same as in `resize`.
    """
    check_choice("longer", longer, LEVELS)
    if isinstance(size, tuple):
        height, width = pair(size)
        check(
            longer == "nearest",
            "with a height and a width, both sides become the nearest: leave out longer",
        )

        def covering(before: tf.Tensor) -> tf.Tensor:
            ratios = before / tf.constant([height, width], tf.int64)
            return _in_proportion(before, tf.reduce_min(ratios))

        return _resize(covering, lambda _: None, method, antialias, levels)
    check_pixels("size", size, at_least=1)

    def sides(before: tf.Tensor) -> tf.Tensor:
        if longer == "down":
            return before * size // tf.reduce_min(before)
        exact = tf.cast(before, tf.float64)
        return tf.cast(tf.round(exact * (size / tf.reduce_min(exact))), tf.int64)

    def output_size(before: KnownSize) -> KnownSize:
        if not isinstance(before, tuple):
            return size
        if longer == "down":
            return before[0] * size // min(before), before[1] * size // min(before)
        ratio = size / min(before)
        return round(before[0] * ratio), round(before[1] * ratio)

    return _resize(sides, output_size, method, antialias, levels)


def resize_long(
    size: Size, method: str = "bilinear", antialias: bool = True, levels: str = "nearest"
) -> Op:
    """Resizes in proportion, as large as fits into `size`: for a crop that fills up.

    `method`, `antialias` and `levels` mean the same as in `resize`.
    """
    sides = pair(size)

    def inside(before: tf.Tensor) -> tf.Tensor:
        return _in_proportion(before, tf.reduce_max(before / tf.constant(sides, tf.int64)))

    return _resize(inside, lambda _: None, method, antialias, levels)


def _in_proportion(before: tf.Tensor, ratio: tf.Tensor) -> tf.Tensor:
    """Sides divided by a number, to the nearest, at least 1: int64 [2] -> int64 [2]."""
    sides = tf.round(tf.cast(before, tf.float64) / ratio)
    return tf.maximum(tf.cast(sides, tf.int64), 1)


def _resize(
    sides: Callable[[tf.Tensor], tf.Tensor],
    output_size: Callable[[KnownSize], KnownSize],
    method: str,
    antialias: bool,
    levels: str,
) -> Op:
    resized = resizer(method, antialias, levels)

    def after(pixels: tf.Tensor) -> tf.Tensor:
        return tf.cast(sides(tf.shape(pixels, tf.int64)[:2]), tf.int32)

    return Op(
        apply=lambda pixels, seed: resized(pixels, after(pixels)),
        output_size=output_size,
        largest=lambda before: largest(before, sides(before), method=method, antialias=antialias),
        is_random=False,
        on_map=lambda values, seed: nearest_values(values, after(values)),
        any_channels=True,
    )


def nearest_values(values: tf.Tensor, size: Any) -> tf.Tensor:
    """A map [H, W, 1] at `size` (height, width): values of classes cannot be averaged."""
    return tf.image.resize(values, size, method="nearest")


def resized(
    pixels: tf.Tensor, size: Any, *, method: str, antialias: bool, levels: str = "nearest"
) -> tf.Tensor:
    """`pixels` at `size` (height, width).

    Bicubic and lanczos with antialias equal Pillow's but for ties: one side after the other, each
    rounded to uint8. Bilinear rounds once, and differs from Pillow by one level at most. `levels`:
    how the result becomes whole, to the "nearest", halves up, or cut off: "down".
    """
    if antialias and method in _TWO_PASSES:
        sides = tf.convert_to_tensor(size, tf.int32)
        return _filtered_twice(pixels, sides, _TWO_PASSES[method], levels)
    filtered = antialias and method == "bilinear"  # TensorFlow warns where it has no effect
    resize = functools.partial(
        tf.image.resize, size=size, method=METHODS[method], antialias=filtered
    )
    if method == "nearest" or filtered:
        exact = resize(pixels)
    else:
        # The same numbers, but kernels that sample take half the time for floats.
        is_small = tf.size(pixels) <= _MOST_FLOATS * tf.reduce_prod(size) * pixels.shape[-1]
        exact = tf.cond(
            is_small, lambda: resize(tf.cast(pixels, tf.float32)), lambda: resize(pixels)
        )
    return _whole(exact, levels, pixels.dtype, overshoots=method in _TWO_PASSES)


def largest(before: tf.Tensor, after: Any, *, method: str, antialias: bool) -> tf.Tensor:
    """Pixels, int64 [], of the largest image on the way from one size, int64 [2], to another."""
    after = tf.cast(after, tf.int64)
    if antialias and method in _TWO_PASSES:
        return tf.reduce_prod(after)  # in their order, no side grows before the other has shrunk
    return after[0] * tf.maximum(before[1], after[1])  # as in TensorFlow: rows first


def resizer(
    method: Any, antialias: Any, levels: Any, *, others: tuple[str, ...] = ()
) -> Callable[[tf.Tensor, Any], tf.Tensor]:
    """`resized` with these arguments, (pixels, size) -> pixels; `others`: more words."""
    if not isinstance(method, str) or method not in METHODS:
        near = nearest(str(method), (*METHODS, *others)).removesuffix(".")
        raise ValueError(f"there is no method {method!r}. {near}")
    check_choice("levels", levels, LEVELS)
    return lambda pixels, size: resized(
        pixels, size, method=method, antialias=antialias, levels=levels
    )


def _filtered_twice(pixels: tf.Tensor, size: tf.Tensor, kernel: str, levels: str) -> tf.Tensor:
    """uint8 [h, w, 3]; one side is resized after the other, in the order of Pillow 13.

    By experiment that is the height first only where it shrinks, and by more than twice as many
    pixels as the width. Pillow 12 always took the width first.
    """
    before = tf.shape(pixels)[:2]
    shrinks = before - size
    between = tf.where(
        (shrinks[0] > 0) & (shrinks[0] > 2 * shrinks[1]),
        tf.stack([size[0], before[1]]),
        tf.stack([before[0], size[1]]),
    )
    filtered = _filtered_side if kernel == "keyscubic" else _filtered
    return filtered(filtered(pixels, between, kernel, "nearest"), size, kernel, levels)


def _filtered(pixels: tf.Tensor, size: tf.Tensor, kernel: str, levels: str) -> tf.Tensor:
    """uint8 [h, w, C]; both sides of `size`, int32 [2], at once."""
    scale = tf.cast(size, tf.float32) / tf.cast(tf.shape(pixels)[:2], tf.float32)
    exact = tf.raw_ops.ScaleAndTranslate(
        images=pixels[None],
        size=size,
        scale=scale,
        translation=tf.zeros([2]),
        kernel_type=kernel,
        antialias=True,
    )[0]
    return _whole(exact, levels, pixels.dtype, overshoots=True)


def _filtered_side(pixels: tf.Tensor, size: tf.Tensor, kernel: str, levels: str) -> tf.Tensor:
    """`_filtered` where at most one side changes, in half the time.

    A row is one pixel of many channels to TensorFlow. The side that stays is left out, which gives
    the same bits if the kernel is 0 at whole numbers; that of lanczos is 1e-8 there.
    """

    def rows(pixels: tf.Tensor, height: tf.Tensor) -> tf.Tensor:
        before = tf.shape(pixels)
        folded = tf.reshape(pixels, [before[0], 1, -1])
        after = _filtered(folded, tf.stack([height, 1]), kernel, levels)
        return tf.reshape(after, [height, before[1], pixels.shape[-1]])

    def columns() -> tf.Tensor:
        return tf.transpose(rows(tf.transpose(pixels, [1, 0, 2]), size[1]), [1, 0, 2])

    return tf.cond(size[1] == tf.shape(pixels)[1], lambda: rows(pixels, size[0]), columns)


def _whole(exact: tf.Tensor, levels: str, dtype: tf.DType, *, overshoots: bool) -> tf.Tensor:
    """Rounds numbers to a whole dtype, clipped if they may lie outside it; floats stay."""
    if exact.dtype == dtype:  # of nearest, which copies pixels, or floats
        return exact
    exact = exact + 0.5 if levels == "nearest" else exact
    within = tf.clip_by_value(exact, 0.0, float(dtype.max)) if overshoots else exact
    return tf.cast(within, dtype)
