"""Preprocessing as a string of ops: "decode|inception_crop(224)|flip_lr".

`parse` looks every op up in OPS; its arguments are Python literals, nothing is evaluated. The first
op must be `decode`, which gives uint8 RGB; every later op maps uint8 [H, W, 3] to the same.

Interpolation is bilinear unless `method` is given (resizing.py). All filter when they shrink
(antialias), as Pillow does, so that evaluation and prediction see the same pixels; but for
`inception_crop`, which samples without a filter, as the published recipes do: that costs a sixth.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from vit_jax.core.arrays import RGB, Pixels
from vit_jax.core.errors import UserError
from vit_jax.core.schema import entry_points
from vit_jax.data.host_tf import tf
from vit_jax.data.ops.op import KnownSize, Op, check
from vit_jax.data.reader import Encoded

if TYPE_CHECKING:
    from vit_jax.data.ops.device_ops import DeviceOps

OPS = entry_points.Parts[Callable[..., Op]](
    "ops",
    {
        "decode": "vit_jax.data.ops.decode:decode",
        "white_level": "vit_jax.data.ops.decode:white_level",
        "inception_crop": "vit_jax.data.ops.crops:inception_crop",
        "random_resized_crop": "vit_jax.data.ops.crops:random_resized_crop",
        "resize": "vit_jax.data.ops.resizing:resize",
        "resize_small": "vit_jax.data.ops.resizing:resize_small",
        "resize_long": "vit_jax.data.ops.resizing:resize_long",
        "central_crop": "vit_jax.data.ops.crops:central_crop",
        "crop_border": "vit_jax.data.ops.crops:crop_border",
        "pad_crop": "vit_jax.data.ops.crops:pad_crop",
        "flip_lr": "vit_jax.data.ops.crops:flip_lr",
        "randaugment": "vit_jax.data.ops.autoaugment:randaugment",
        "autoaugment": "vit_jax.data.ops.autoaugment:autoaugment",
        "trivialaugment": "vit_jax.data.ops.autoaugment:trivialaugment",
        "timm_randaugment": "vit_jax.data.ops.timm_randaugment:timm_randaugment",
        "color_jitter": "vit_jax.data.ops.augmentations:color_jitter",
        "grayscale": "vit_jax.data.ops.augmentations:grayscale",
        "solarize": "vit_jax.data.ops.augmentations:solarize",
        "gaussian_blur": "vit_jax.data.ops.augmentations:gaussian_blur",
        "three_augment": "vit_jax.data.ops.augmentations:three_augment",
        "random_erasing": "vit_jax.data.ops.augmentations:random_erasing",
    },
)


class OpCall(NamedTuple):
    """One op as written: its name, and its arguments, which are literals."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    text: str

    def argument(self, place: int, name: str) -> Any:
        """An argument by position or by name; None if it was not given."""
        return self.args[place] if place < len(self.args) else self.kwargs.get(name)


def parse_calls(text: str, *, field: str) -> list[OpCall]:
    """The ops of a string in order. UserError for an op that is not a name with literals."""
    return [_parse_call(part.strip(), field, text) for part in text.split("|")]


def _parse_call(part: str, field: str, text: str) -> OpCall:
    try:
        call = ast.parse(part, mode="eval").body
        if isinstance(call, ast.Name):
            return OpCall(call.id, (), {}, part)
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
            raise SyntaxError
        args = tuple(ast.literal_eval(a) for a in call.args)
        kwargs = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
        check(len(kwargs) == len(call.keywords), "an argument is given twice")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        rule = f"has {part!r}, not a name with literals in parentheses, as inception_crop(224)."
        raise UserError(rule, field=field, value=repr(text)) from error
    return OpCall(call.func.id, args, kwargs, part)


# The random ops that have a version for devices.
ON_DEVICE = ("pad_crop", "flip_lr", "autoaugment", "random_erasing")


class Preprocess:
    """Parsed ops; calling it makes pixels of an encoded image.

    `output_size`: (height, width) of the result in pixels; None if it depends on the image.
    """

    def __init__(
        self,
        ops: tuple[Op, ...],
        texts: tuple[str, ...],
        *,
        size: tuple[int, int] | None = None,
        whole: bool = False,
    ) -> None:
        """`texts`: the ops as written; `size`: of the result, if it is known otherwise."""
        self._ops = ops
        self._texts = texts
        self._whole = whole
        self.output_size = size or _output_size(ops)

    def of_whole_images(self) -> Preprocess:
        """Ops that find every fault an image may have, by decoding it as a whole.

        Those behind the op that gives all images one size are left out.
        """
        numbers = range(1, len(self._ops) + 1)
        number = next((n for n in numbers if _output_size(self._ops[:n])), len(self._ops))
        return Preprocess(self._ops[:number], self._texts[:number], whole=True)

    def with_size(self, size: tuple[int, int]) -> Preprocess:
        """The same ops, for images that all come out at this (height, width)."""
        return Preprocess(self._ops, self._texts, size=size)

    def check_maps(self, names: Sequence[str], field: str) -> None:
        """UserError for an op that cannot change maps of these names as it does the image."""
        fits = [not names or op.on_map is not None for op in self._ops]
        self._check(fits, f"cannot change a {' or '.join(names)} too", field)

    def check_pixels(self, pixels: Pixels, field: str) -> None:
        """UserError for an op that takes RGB of 8 bits alone, where images are of another form."""
        is_rgb = (pixels.channels, pixels.dtype) == RGB[:2]
        fits = [is_rgb or op.any_channels for op in self._ops]
        self._check(fits, f"takes uint8 RGB alone, not {pixels}", field)

    def _check(self, fits: Sequence[bool], what: str, field: str) -> None:
        for text, fit in zip(self._texts, fits, strict=True):
            if not fit:
                raise UserError(f"has {text}, which {what}: leave it out.", field=field)

    def on_map(self, values: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """A map of the image, uint16 [H, W, 1] -> [h, w], as the image is changed by this seed."""
        for place, op in enumerate(self._ops):
            assert op.on_map is not None, "check_maps"
            values = op.on_map(values, _at(seed, place))
        return values[:, :, 0]

    def before_random(self) -> Preprocess:
        """The ops before the first random one: what they make of an image is always the same."""
        number = self._number_before_random()
        return Preprocess(self._ops[:number], self._texts[:number])

    def on_device(self, size: KnownSize = None) -> DeviceOps:
        """The other ops, for devices; `size`: of the images before them, where it is known."""
        from vit_jax.data.ops.device_ops import DeviceOps

        first = self._number_before_random()
        ops = {}
        for place, op in enumerate(self._ops[first:], start=first):
            if op.on_device is None:
                rule = f"is random or behind such an op; devices have {', '.join(ON_DEVICE)}."
                cure = "Put it first, or set input.cache=ram."
                raise UserError(rule, field=self._texts[place], cure=cure)
            try:
                size = op.output_size(size)
            except ValueError as error:
                raise UserError(f"{self._texts[place]} {error}.") from error
            ops[place] = op.on_device
        return DeviceOps(ops)

    def _number_before_random(self) -> int:
        return next((i for i, op in enumerate(self._ops) if op.is_random), len(self._ops))

    def __str__(self) -> str:
        return "|".join(self._texts)

    def __call__(self, image: Encoded, seed: tf.Tensor, *, max_image_pixels: int) -> tf.Tensor:
        """uint8 [H, W, 3], a function of the image and `seed` (int64 [2]).

        Fails where an op would make an image of more than `max_image_pixels`, before it does.

        The op at place i of the string draws from seed + (0, i): the seeds of two examples must
        differ in the first number, or by more than the number of ops in the second.
        """
        in_one = len(self._ops) > 1 and self._ops[1].decode is not None and not self._whole
        first = 1 if in_one else 0
        pixels = self.decode(image, seed, place=first)
        return self.apply(pixels, seed, first=first + 1, max_image_pixels=max_image_pixels)

    def decode(self, image: Encoded, seed: tf.Tensor, *, place: int = 0) -> tf.Tensor:
        """The image as the op at `place` decodes it: uint8 [H, W, 3]."""
        decode = self._ops[place].decode
        assert decode is not None, "parse begins with decode"
        return decode(image, _at(seed, place))

    def apply(
        self, pixels: tf.Tensor, seed: tf.Tensor, *, first: int = 1, max_image_pixels: int
    ) -> tf.Tensor:
        """Decoded pixels -> uint8 [H, W, 3], by the ops from `first` on."""
        for place, op in enumerate(self._ops[first:], start=first):
            if op.largest:
                pixels = _check_pixels(pixels, op.largest, max_image_pixels)
            pixels = op.apply(pixels, _at(seed, place))
        return pixels


def _output_size(ops: Sequence[Op]) -> tuple[int, int] | None:
    size: KnownSize = None
    for op in ops:
        size = op.output_size(size)
    return size if isinstance(size, tuple) else None


def _at(seed: tf.Tensor, place: int) -> tf.Tensor:
    return seed + tf.constant([0, place], tf.int64)


def parse(preprocess: str, *, field: str = "preprocess") -> Preprocess:
    """Parses the ops of a string such as "decode|resize_small(256)|central_crop(224)".

    Arguments may have names: "decode|inception_crop(224, area_min=0.25)". The first op and no other
    is `decode`. `field`: the config's, for messages.
    """
    calls = parse_calls(preprocess, field=field)
    ops: list[Op] = []
    size: KnownSize = None
    for call in calls:
        make = OPS.find(call.name)
        try:
            if make is None:
                there = OPS.nearest(call.name).removesuffix(".")
                raise ValueError(f"there is no such op. {there}")
            check((call.name == "decode") == (not ops), "decode must be the first op alone")
            ops.append(_made(make, call))
            size = ops[-1].output_size(size)
        except (TypeError, ValueError, OverflowError) as error:
            usage = "" if make is None else f" (as {call.name}({_usage(make)}))"
            raise UserError(f"{field}={preprocess!r}: {call.text}{usage}: {error}.") from error
    return Preprocess(tuple(ops), tuple(call.text for call in calls))


def _made(make: Any, call: OpCall) -> Op:
    """The op. TypeError for other arguments than it has, ValueError for a wrong one."""
    signature = inspect.signature(make)
    for name, value in signature.bind(*call.args, **call.kwargs).arguments.items():
        is_flag = signature.parameters[name].annotation in ("bool", bool)
        check(not is_flag or type(value) is bool, f"{name} must be True or False")
    return make(*call.args, **call.kwargs)


def _usage(make: Any) -> str:
    parameters = inspect.signature(make).parameters.values()
    return ", ".join(str(p.replace(annotation=p.empty)) for p in parameters)


def _check_pixels(
    pixels: tf.Tensor, largest: Callable[[tf.Tensor], tf.Tensor], max_image_pixels: int
) -> tf.Tensor:
    """Returns `pixels`; fails where an op would make too many of them."""
    num_pixels = largest(tf.shape(pixels, tf.int64)[:2])
    message = f"preprocessing it takes more than input.max_image_pixels={max_image_pixels} pixels"
    enough = tf.debugging.assert_less_equal(
        num_pixels, tf.constant(max_image_pixels, tf.int64), message
    )
    with tf.control_dependencies([enough]):
        return tf.identity(pixels)


IMAGE = "image"  # the first view's name in a batch


class Views:
    """Parsed ops of each view, by its name in a batch; all of them end in one known size.

    `shapes`: (height, width, channels) of each; `pixels`: the form of all images.
    """

    def __init__(self, views: Mapping[str, Preprocess], pixels: Pixels = RGB) -> None:
        self.pixels = pixels
        self.shapes: dict[str, tuple[int, int, int]] = {}
        for name, each in views.items():
            if each.output_size is None:
                rule = "must end in one size: add resize(224) or central_crop(224)."
                raise UserError(rule, field=_field(name))
            self.shapes[name] = (*each.output_size, pixels.channels)
        self._views = dict(views)

    def __call__(
        self, image: Encoded, seed: tf.Tensor, *, max_image_pixels: int
    ) -> dict[str, tf.Tensor]:
        """[H, W, C] of each view; the first is what its ops alone make with this seed.

        Of several views the image is decoded once, as a whole: `reduced` has no effect there.
        """
        first, *others = self._views
        if not others and not self.pixels.stored:
            pixels = self._views[first](image, seed, max_image_pixels=max_image_pixels)
            return {first: tf.ensure_shape(pixels, self.shapes[first])}
        if self.pixels.stored:
            shape = [image.size[0], image.size[1], self.pixels.channels]
            decoded = tf.reshape(tf.io.decode_raw(image.data, self.pixels.dtype), shape)
            decoded = tf.ensure_shape(decoded, [None, None, self.pixels.channels])
        else:
            decoded = self._views[first].decode(image, seed)
        made = {}
        for number, (name, ops) in enumerate(self._views.items()):
            fold_in = tf.random.experimental.stateless_fold_in
            view_seed = tf.cast(fold_in(seed, number), tf.int64) if number else seed
            pixels = ops.apply(decoded, view_seed, max_image_pixels=max_image_pixels)
            made[name] = tf.ensure_shape(pixels, self.shapes[name])
        return made

    def on_map(self, values: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """A map of the first view, uint16 [H, W, 1] -> [h, w]."""
        first = next(iter(self._views))
        return tf.ensure_shape(self._views[first].on_map(values, seed), self.shapes[first][:2])


def parse_views(preprocess: str, further: Mapping[str, str], pixels: Pixels = RGB) -> Views:
    """The image's ops, and those of further views by their names. UserError as `parse`."""
    ops = {IMAGE: preprocess, **further}
    return Views({name: parse(each, field=_field(name)) for name, each in ops.items()}, pixels)


def _field(name: str) -> str:
    return "input.preprocess" if name == IMAGE else "input.views"
