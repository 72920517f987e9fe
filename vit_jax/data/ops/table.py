"""Preprocessing as a string of ops: "decode|inception_crop(224)|flip_lr".

`parse` looks every op up in OPS; its arguments are Python literals, nothing is evaluated. The first
op must be `decode`, which ends in uint8 RGB; every op after it takes and gives uint8 [H, W, 3].

Interpolation is bilinear if `method` says nothing else (resizing.py). All filter when they shrink
(antialias), as Pillow does, so that evaluation and prediction see the same pixels; but for
`inception_crop`, which samples without a filter, as the published recipes do: that costs a sixth.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

from vit_jax.core import opstring
from vit_jax.core.errors import UserError, nearest
from vit_jax.data import decode as decoding
from vit_jax.data.decode import Encoded
from vit_jax.data.host_tf import tf
from vit_jax.data.ops import crops
from vit_jax.data.ops.autoaugment import autoaugment
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
from vit_jax.data.ops.photometric import (
    color_jitter,
    gaussian_blur,
    grayscale,
    solarize,
    three_augment,
)
from vit_jax.data.ops.randaugment import randaugment
from vit_jax.data.ops.random_erasing import random_erasing
from vit_jax.data.ops.resizing import resize, resize_long, resize_small, resizer


def decode() -> Op:
    """The whole image, upright, as RGB."""
    return Op(
        apply=lambda pixels, seed: pixels,
        output_size=lambda size: None,
        decode=lambda image, seed: decoding.decode(image),
    )


def inception_crop(
    size: Size,
    area_min: float = 0.05,
    area_max: float = 1.0,
    reduced: float | None = None,
    method: str = "bilinear",
    antialias: bool = False,
    levels: str = "nearest",
) -> Op:
    """A random window of `area_min` to `area_max` of the image, 3/4 to 4/3 in aspect, resized.

    Right after `decode`, only the window is decoded; with `reduced`, of a JPEG at 1/2, 1/4 or 1/8
    of its size if `reduced` times `size` pixels are left, which is quicker for large images.
    `method`, `antialias` and `levels` are those of `resize`.

    Szegedy et al., Going Deeper with Convolutions (arXiv 1409.4842), section 6.
    """
    resized = resizer(method, antialias, levels)
    return _cropped_and_resized(
        pair(size),
        lambda of, seed: crops.inception_window(of, seed, area_min, area_max),
        lambda pixels, seed: resized(pixels, pair(size)),
        _at_least(pair(size), area_min, area_max, reduced),
    )


def random_resized_crop(
    size: Size,
    area_min: float = 0.08,
    area_max: float = 1.0,
    method: str = "bilinear",
    reduced: float | None = None,
) -> Op:
    """The crop of torchvision and timm: as `inception_crop`, but drawn and resized as there.

    Areas are uniform, aspects uniform by their logarithms, and it filters when it shrinks. For the
    same bounds the areas are larger: 0.43 of an image of 375 x 500 pixels on average, where
    `inception_crop` has 0.37. `method` is one of `resize`, or random: bilinear or bicubic, equally
    often, as timm's default is.
    """
    choices = ("bilinear", "bicubic") if method == "random" else (method, method)
    first, second = (resizer(chosen, True, "nearest", others=("random",)) for chosen in choices)

    def resized(pixels: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        if method != "random":
            return first(pixels, pair(size))
        coin = tf.random.experimental.stateless_fold_in(seed, 1)  # the window has drawn from seed
        is_bicubic = tf.random.stateless_uniform([], coin) < 0.5
        return tf.cond(
            is_bicubic,
            lambda: second(pixels, pair(size)),
            lambda: first(pixels, pair(size)),
        )

    return _cropped_and_resized(
        pair(size),
        lambda of, seed: crops.resized_crop_window(of, seed, area_min, area_max),
        resized,
        _at_least(pair(size), area_min, area_max, reduced),
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
        # Half of an odd number lies between two whole ones; that of 3, 7, 11 ... is rounded up, to
        # the even one.
        begin = room // 2 if middle == "down" else (room + (room % 4) // 2) // 2
        return decoding.crop(pixels, tf.concat([begin, [height, width]], 0))

    def output_size(before: KnownSize) -> KnownSize:
        if fill is not None:
            return height, width
        return _cropped_size(before, (height, width), padding=0)

    return Op(apply, output_size)


def pad_crop(size: Size, padding: int, reflect: bool = False) -> Op:
    """Black on every side, `padding` pixels wide, then a random window of `size`.

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
        return decoding.crop(padded, tf.concat([begin, [height, width]], 0))

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
    """Mirrored along the width, every second image on average."""
    return same_size(tf.image.stateless_random_flip_left_right)


OPS: dict[str, Callable[..., Op]] = {
    "decode": decode,
    "inception_crop": inception_crop,
    "random_resized_crop": random_resized_crop,
    "resize": resize,
    "resize_small": resize_small,
    "resize_long": resize_long,
    "central_crop": central_crop,
    "pad_crop": pad_crop,
    "flip_lr": flip_lr,
    "randaugment": randaugment,
    "autoaugment": autoaugment,
    "color_jitter": color_jitter,
    "grayscale": grayscale,
    "solarize": solarize,
    "gaussian_blur": gaussian_blur,
    "three_augment": three_augment,
    "random_erasing": random_erasing,
}


class Preprocess:
    """Parsed ops; calling it makes pixels of an encoded image.

    Attributes:
      output_size: (height, width) of the result in pixels; None if it depends on the image.
    """

    def __init__(
        self, ops: tuple[Op, ...], output_size: tuple[int, int] | None, *, whole: bool = False
    ) -> None:
        self._ops = ops
        self._whole = whole
        self.output_size = output_size

    def of_whole_images(self) -> Preprocess:
        """Finds all that may be wrong with an image: decodes each as a whole, whatever it shows.

        What comes behind the op that gives all images one size is left out.
        """
        size: KnownSize = None
        for number, op in enumerate(self._ops, start=1):
            size = op.output_size(size)
            if isinstance(size, tuple):
                return Preprocess(self._ops[:number], size, whole=True)
        return Preprocess(self._ops, None, whole=True)

    def __call__(self, image: Encoded, seed: tf.Tensor, *, max_image_pixels: int) -> tf.Tensor:
        """uint8 [H, W, 3], a function of the image and `seed` (int64 [2]).

        Fails where an op would make an image of more than `max_image_pixels`, before it does.

        The op at place i of the string draws from seed + (0, i): the seeds of two examples must
        differ in the first number, or by more than the number of ops in the second.
        """
        in_one = len(self._ops) > 1 and self._ops[1].decode is not None and not self._whole
        first = 1 if in_one else 0
        start = self._ops[first].decode
        assert start is not None, "parse begins with decode"
        pixels = start(image, _at(seed, first))
        for place, op in enumerate(self._ops[first + 1 :], start=first + 1):
            if op.largest:
                pixels = _limited(pixels, op.largest, max_image_pixels)
            pixels = op.apply(pixels, _at(seed, place))
        return pixels


def parse(preprocess: str, *, field: str = "preprocess") -> Preprocess:
    """The ops that a string like "decode|resize_small(256)|central_crop(224)" names.

    Arguments may have names: "decode|inception_crop(224, area_min=0.25)". UserError for an unknown
    op or argument, an argument that is no literal or out of range, a crop of more than there can
    be, and unless the first op and no other is `decode`. `field` is the config's, for messages.
    """
    calls = opstring.parse(preprocess, field=field)
    where = f"{field}={preprocess!r}"
    ops = tuple(_op(call, where) for call in calls)
    if [call.name == "decode" for call in calls] != [True] + [False] * (len(calls) - 1):
        raise UserError(
            f"{where} must have decode as its first op, and only there: "
            "decode|inception_crop(224)|flip_lr."
        )
    size: KnownSize = None
    for call, op in zip(calls, ops, strict=True):
        try:
            size = op.output_size(size)
        except ValueError as error:
            raise UserError(f"{where}: {call.text} {error}.") from error
    return Preprocess(ops, size if isinstance(size, tuple) else None)


def _op(call: opstring.Call, where: str) -> Op:
    if call.name not in OPS:
        raise UserError(f"{where}: there is no op {call.name!r}. {nearest(call.name, OPS)}")
    op = OPS[call.name]
    signature = inspect.signature(op)
    try:
        for name in call.kwargs:
            check(name in signature.parameters, f"there is no argument {name!r}")
        signature.bind(*call.args, **call.kwargs)
        return op(*call.args, **call.kwargs)
    except (TypeError, ValueError, OverflowError) as error:
        usage = _usage(call.name)
        raise UserError(f"{where}: {call.text} does not fit {usage}: {error}.") from error


def _usage(name: str) -> str:
    """ "inception_crop(size, area_min=0.05, area_max=1.0)" """
    parameters = inspect.signature(OPS[name]).parameters.values()
    return f"{name}({', '.join(str(p.replace(annotation=p.empty)) for p in parameters)})"


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


def _at(seed: tf.Tensor, place: int) -> tf.Tensor:
    return seed + tf.constant([0, place], tf.int64)


def _is_level(value: object) -> bool:
    return type(value) is int and 0 <= value <= 255


def _padded(pixels: tf.Tensor, size: tuple[int, int], fill: tuple[int, int, int]) -> tf.Tensor:
    """At least `size`, the image in the middle; the larger half below and to the right."""
    missing = tf.maximum(tf.constant(size) - tf.shape(pixels)[:2], 0)
    before = missing // 2
    margins = tf.concat([tf.stack([before, missing - before], 1), [[0, 0]]], 0)
    inside = tf.pad(tf.ones_like(pixels[:, :, :1], tf.bool), margins)
    return tf.where(inside, tf.pad(pixels, margins), tf.constant(fill, tf.uint8))


def _room(pixels: tf.Tensor, size: tuple[int, int]) -> tf.Tensor:
    """How far a window of `size` can move, int32 [2]; fails where it is larger than the image."""
    room = tf.shape(pixels)[:2] - size
    message = f"the image is smaller than the crop of {size[0]} x {size[1]} pixels"
    with tf.control_dependencies([tf.debugging.assert_non_negative(room, message)]):
        return tf.identity(room)


def _limited(
    pixels: tf.Tensor, largest: Callable[[tf.Tensor], tf.Tensor], max_image_pixels: int
) -> tf.Tensor:
    """`pixels`; fails where an op would make too many of them."""
    num_pixels = largest(tf.shape(pixels, tf.int64)[:2])
    message = f"preprocessing it takes more than input.max_image_pixels={max_image_pixels} pixels"
    enough = tf.debugging.assert_less_equal(
        num_pixels, tf.constant(max_image_pixels, tf.int64), message
    )
    with tf.control_dependencies([enough]):
        return tf.identity(pixels)


def _at_least(
    size: tuple[int, int], area_min: float, area_max: float, reduced: float | None
) -> tuple[float, float] | None:
    """Pixels that a JPEG's window keeps, (height, width); ValueError for arguments of a crop."""
    are_numbers = all(type(area) in (int, float) for area in (area_min, area_max))
    check(
        are_numbers and 0 < area_min <= area_max <= 1,
        "area_min and area_max must be numbers, 0 < area_min <= area_max <= 1",
    )
    check(
        reduced is None or (type(reduced) in (int, float) and 0 < reduced <= 8),
        "reduced must be None or a number in (0, 8]",
    )
    return None if reduced is None else (max(1, reduced * size[0]), max(1, reduced * size[1]))


def _cropped_and_resized(
    size: tuple[int, int],
    window: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    resized: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    at_least: tuple[float, float] | None,
) -> Op:
    """A window, (size, seed) -> int32 [4], then what makes `size` of it, (pixels, seed) -> pixels.

    Right after `decode`, only the window is decoded.
    """

    def decode_window(image: Encoded, seed: tf.Tensor) -> tf.Tensor:
        return decoding.decode_window(image, window(image.size, seed), at_least=at_least)

    return Op(
        apply=lambda pixels, seed: resized(
            decoding.crop(pixels, window(tf.shape(pixels)[:2], seed)), seed
        ),
        output_size=lambda _: size,
        decode=lambda image, seed: resized(decode_window(image, seed), seed),
    )
