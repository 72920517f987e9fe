"""The type of a preprocessing op, and checks of the arguments that a config gives it.

Every check raises ValueError with the rule; table.py adds the op's usage and the config's field.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import jax

from vit_jax.core.errors import nearest
from vit_jax.data.host_tf import tf
from vit_jax.data.reader import Encoded

# The image size that is known in advance: both sides, the shorter side only, or nothing.
KnownSize = tuple[int, int] | int | None
Size = int | tuple[int, int]  # both sides, or (height, width); in pixels


class OnDevice(NamedTuple):
    """A random op in JAX, of images of one size; the host draws its numbers."""

    num_draws: int  # tf.random.stateless_uniform([num_draws], seed)
    # (pixels uint8 [H, W, 3], draws float32 [num_draws]) -> uint8 [h, w, 3]
    apply: Callable[[jax.Array, jax.Array], jax.Array]


class Op(NamedTuple):
    """A step of preprocessing. `seed` is int64 [2]; only random ops use it."""

    apply: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]  # (pixels, seed) -> pixels
    # Size of the input -> size of the output; ValueError where no image of that size fits.
    output_size: Callable[[KnownSize], KnownSize]
    # Pixels, int64 [], of the largest image on the way, given the input's size, int64 [2]. None:
    # not larger than its input and its output, whose sizes are known before.
    largest: Callable[[tf.Tensor], tf.Tensor] | None = None
    # For the first op after `decode`: both fused, (encoded image, seed) -> pixels.
    decode: Callable[[Encoded, tf.Tensor], tf.Tensor] | None = None
    # Whether it uses its seed: what an op makes without is the same at each visit of an example.
    is_random: bool = True
    # The same on devices; None: there is no such version.
    on_device: OnDevice | None = None
    # What happens to a map beside the image, such as a mask, by the same draws of the same seed:
    # (values uint16 [H, W, 1], seed) -> values; 0 is put where the image is padded. None: data with
    # maps are refused.
    on_map: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] | None = None
    # Whether it takes images of any dtype and number of channels; else uint8 RGB alone.
    any_channels: bool = False


def unchanged(values: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """`Op.on_map` of an op that changes colours alone."""
    del seed
    return values


def same_size(
    apply: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    on_device: OnDevice | None = None,
    on_map: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] | None = None,
    *,
    any_channels: bool = False,
) -> Op:
    """A random op that keeps the image's size, as augmentations do."""
    rest: dict[str, Any] = {"on_map": on_map, "any_channels": any_channels}
    return Op(apply, output_size=lambda size: size, on_device=on_device, **rest)


def sometimes(probability: float, change: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]) -> Op:
    """An op that applies `change`, of colours, with that probability, else leaves the image."""
    check_number("probability", probability, at_least=0, at_most=1)

    def apply(pixels: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        coin, seed = tf.unstack(tf.random.experimental.stateless_split(seed, 2))
        happens = tf.random.stateless_uniform([], coin) < probability
        return tf.cond(happens, lambda: change(pixels, seed), lambda: pixels)

    return same_size(apply, on_map=unchanged)


def chosen(
    choice: tf.Tensor, pixels: tf.Tensor, changes: Sequence[Callable[..., tf.Tensor]], *args: Any
) -> tf.Tensor:
    """`pixels` by the change `choice`, int32 [], of `changes`; as they are for any other number."""
    branches = {i: functools.partial(change, pixels, *args) for i, change in enumerate(changes)}
    changed = tf.switch_case(choice, branches, default=lambda: pixels)
    return tf.ensure_shape(changed, pixels.shape)


def check(condition: bool, rule: str) -> None:
    """ValueError with `rule` unless `condition` holds."""
    if not condition:
        raise ValueError(rule)


def check_pixels(name: str, value: Any, at_least: int) -> None:
    """ValueError unless it is a whole number of pixels."""
    is_fine = type(value) is int and value >= at_least
    check(is_fine, f"{name} must be a whole number of pixels, at least {at_least}")


def check_number(name: str, value: Any, *, at_least: float, at_most: float) -> None:
    """ValueError unless it is a number in that range."""
    rule = f"{name} must be a number from {at_least:g} to {at_most:g}"
    check(type(value) in (int, float), rule)
    closest = min(max(value, at_least), at_most)
    check(value == closest, f"{rule}; nearest to {value:g}: {closest:g}")


def check_choice(name: str, value: Any, choices: Collection[str]) -> None:
    """ValueError with the nearest word unless it is one of `choices`."""
    if not (isinstance(value, str) and value in choices):
        check(False, f"{name}={value!r}. {nearest(str(value), choices)}".removesuffix("."))


def check_colour(name: str, value: Any) -> None:
    """ValueError unless it is red, green and blue, whole numbers from 0 to 255."""
    is_valid = isinstance(value, tuple) and len(value) == 3
    is_valid = is_valid and all(type(level) is int and 0 <= level <= 255 for level in value)
    check(is_valid, f"{name} must be a whole number from 0 to 255")


def pair(size: Size) -> tuple[int, int]:
    """(height, width); ValueError unless both are whole numbers of pixels."""
    height, width = size if isinstance(size, tuple) and len(size) == 2 else (size, size)
    check_pixels("size, or each of (height, width),", height, at_least=1)
    check_pixels("size, or each of (height, width),", width, at_least=1)
    return height, width  # type: ignore[return-value]  # both are int, as checked
