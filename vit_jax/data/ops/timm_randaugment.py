"""RandAugment as timm has it, "rand-m9-mstd0.5-inc1": levels are drawn, and ops may be left out.

Its fifteen distortions change the more the higher the level is, 0 to 10; geometric ones interpolate
(github.com/huggingface/pytorch-image-models, timm/data/auto_augment.py).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from vit_jax.data.host_tf import tf
from vit_jax.data.ops import effects
from vit_jax.data.ops.op import (
    Op,
    check,
    check_choice,
    check_colour,
    check_number,
    chosen,
    same_size,
)

_MOST = 10.0  # the highest level
# (pixels, level [], sign -1 or 1 [], effects.interpolated with its interpolation) -> pixels
_Change = Callable[..., Any]


def _plain(function: Callable[[tf.Tensor], tf.Tensor]) -> _Change:
    return lambda pixels, level, sign, interpolated: function(pixels)


def _part(level: tf.Tensor, limit: int) -> tf.Tensor:
    """A whole number from 0 to `limit`, rounded down."""
    return tf.floor(level / _MOST * limit)


def _enhanced(function: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]) -> _Change:
    """By a factor on either side of 1, which changes nothing."""

    def apply(pixels: tf.Tensor, level: tf.Tensor, sign: tf.Tensor, _: Any) -> tf.Tensor:
        factor = 1 + sign * level / _MOST * 0.9
        return function(pixels, tf.cast(tf.maximum(factor, 0.1), tf.float32))

    return apply


def _rotate(
    pixels: tf.Tensor, level: tf.Tensor, sign: tf.Tensor, interpolated: Callable[..., tf.Tensor]
) -> tf.Tensor:
    angle = -sign * level * 3 * math.radians(1)
    cos, sin = tf.cos(angle), tf.sin(angle)
    height, width = tf.unstack(tf.cast(tf.shape(pixels)[:2], tf.float64) / 2)
    x_from = (cos, sin, width - cos * width - sin * height)
    return interpolated(pixels, x_from, (-sin, cos, height + sin * width - cos * height))


def _shifted(slope: tuple[float, float], shift: tuple[float, float]) -> _Change:
    """x from y and y from x, and along x and y by parts of the side, each at level 10."""

    def apply(
        pixels: tf.Tensor, level: tf.Tensor, sign: tf.Tensor, interpolated: Callable[..., tf.Tensor]
    ) -> tf.Tensor:
        height, width = tf.unstack(tf.cast(tf.shape(pixels)[:2], tf.float64))
        amount = sign * level / _MOST
        x_from = (1.0, amount * slope[0], amount * shift[0] * width)
        return interpolated(pixels, x_from, (amount * slope[1], 1.0, amount * shift[1] * height))

    return apply


DISTORTIONS: dict[str, _Change] = {
    "AutoContrast": _plain(effects.autocontrast),
    "Equalize": _plain(effects.equalize),
    "Invert": _plain(effects.invert),
    "Rotate": _rotate,
    "PosterizeIncreasing": lambda x, level, *_: effects.posterize(
        x,
        tf.cast(tf.maximum(4 - _part(level, 4), 1), tf.float32),  # Pillow takes no 0 bits
    ),
    "SolarizeIncreasing": lambda x, level, *_: effects.solarize(
        x, tf.cast(256 - _part(level, 256), tf.float32)
    ),
    "SolarizeAdd": lambda x, level, *_: effects.solarize_add(
        x, tf.cast(_part(level, 110), tf.float32)
    ),
    "ColorIncreasing": _enhanced(effects.saturation),
    "ContrastIncreasing": _enhanced(effects.contrast),
    "BrightnessIncreasing": _enhanced(effects.brightness),
    "SharpnessIncreasing": _enhanced(effects.sharpness),
    "ShearX": _shifted(slope=(0.3, 0), shift=(0, 0)),
    "ShearY": _shifted(slope=(0, 0.3), shift=(0, 0)),
    "TranslateXRel": _shifted(slope=(0, 0), shift=(0.45, 0)),
    "TranslateYRel": _shifted(slope=(0, 0), shift=(0, 0.45)),
}


def timm_randaugment(
    num_ops: int,
    magnitude: float,
    std: float = 0.0,
    probability: float = 0.5,
    method: str = "random",
    fill: tuple[int, int, int] = (128, 128, 128),
) -> Op:
    """`num_ops` distortions, each drawn from fifteen and applied with `probability`.

    Levels are normal about `magnitude`, 0 to 10, with deviation `std`, clipped to 0..10. `method`
    interpolates: "bilinear", "bicubic", or "random" for either. `fill`: the colour of what moves
    in.
    """
    check(type(num_ops) is int and num_ops >= 1, "num_ops must be a whole number, at least 1")
    check_number("magnitude", magnitude, at_least=0, at_most=_MOST)
    check_number("std", std, at_least=0, at_most=100)
    check_number("probability", probability, at_least=0, at_most=1)
    check_choice("method", method, ("random", "bilinear", "bicubic"))
    check_colour("each of three numbers of fill", fill)

    def apply(pixels: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        uniform_seed, normal_seed = tf.unstack(tf.random.experimental.stateless_split(seed, 2))
        draws = tf.random.stateless_uniform([num_ops, 4], uniform_seed)
        normal = tf.random.stateless_normal([num_ops], normal_seed, dtype=tf.float64)
        levels = tf.clip_by_value(magnitude + std * normal, 0.0, _MOST)
        choices = tf.cast(draws[:, 0] * len(DISTORTIONS), tf.int32)
        choices = tf.where(draws[:, 1] < probability, choices, -1)
        signs = tf.where(draws[:, 2] < 0.5, tf.constant(-1.0, tf.float64), 1.0)
        for i in range(num_ops):
            is_cubic = draws[i, 3] < {"bilinear": 0.0, "random": 0.5, "bicubic": 1.0}[method]
            interpolated = functools.partial(effects.interpolated, is_cubic=is_cubic, fill=fill)
            changes = list(DISTORTIONS.values())
            pixels = chosen(choices[i], pixels, changes, levels[i], signs[i], interpolated)
        return pixels

    return same_size(apply)
