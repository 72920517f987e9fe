"""RandAugment and AutoAugment: distortions drawn for each image (arXiv 1909.13719, 1805.09501).

The set and the meaning of levels are those of the authors' TensorFlow implementation (EfficientNet
on TPU, which AugReg's pipeline took over): 10 gives the limits in the table below, more goes on in
proportion. Its bugs are fixed, and kept "as published", by a processor and NumPy 1, for recipes:

- Contrast blends with the mean luma, as Pillow does; there it was the number of pixels / 256.
- Solarize's threshold ends at 256, which changes nothing; there it wraps around from level 10 on,
  where the threshold 256 is 0: all values are negated.
- Posterize keeps 1 to 8 bits; there more than 8 are a shift that wraps around, and keep one.
- Sharpness rounds the smoothed image to the nearest, and Color has Pillow's luma; there it is
  rounded down, and the luma is TensorFlow's.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.data.host_tf import tf
from vit_jax.data.ops import device_effects, effects
from vit_jax.data.ops.op import OnDevice, Op, check, check_choice, check_number, chosen, same_size

NOTHING = -1  # the choice that leaves an image as it is


class Distortion(NamedTuple):
    """A distortion: its argument by level, and its effect by argument.

    `chance` is float32 [3], uniform in [0, 1): for the sign, and for a place (y, x).
    """

    argument: Callable[[float], float]
    apply: Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]  # (pixels, argument, chance)
    # (pixels, argument, sign) -> pixels, in JAX; None: there is no such version.
    on_device: Callable[[jax.Array, jax.Array, jax.Array], jax.Array] | None = None


def distort(
    pixels: tf.Tensor,
    names: Sequence[str],
    choice: tf.Tensor,
    argument: tf.Tensor,
    chance: tf.Tensor,
) -> tf.Tensor:
    """Applies the distortion `choice`, int32 [], of `names`; uint8 [H, W, 3] -> uint8 [H, W, 3]."""
    return chosen(choice, pixels, [DISTORTIONS[name].apply for name in names], argument, chance)


_Argument = Callable[[float], float]
_Change = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]  # of pixels, by an argument


def _factor(level: float) -> float:
    return level / 10 * 1.8 + 0.1


def _up_to(limit: float) -> _Argument:
    return lambda level: level * limit / 10


def _whole(limit: float, lowest: int, highest: int) -> _Argument:
    return lambda level: float(min(max(int(level * limit / 10), lowest), highest))


def _ninths(limit: float, start: float = 0.0) -> _Argument:
    """From `start` on by `limit` at level 9, the last one of PyTorch's version."""
    return lambda level: start + level * limit / 9


def _plain(function: Callable[[tf.Tensor], tf.Tensor]) -> Distortion:
    on_device = _by_version(function, lambda version, pixels, argument, sign: version(pixels))
    return Distortion(lambda level: 0.0, lambda pixels, *_: function(pixels), on_device)


def _with(argument: _Argument, function: _Change) -> Distortion:
    on_device = _by_version(function, lambda version, pixels, a, sign: version(pixels, a))
    return Distortion(argument, lambda pixels, a, chance: function(pixels, a), on_device)


def _either_way(argument: _Argument, function: _Change) -> Distortion:
    """The argument or its negative, equally often."""

    def apply(pixels: tf.Tensor, argument: tf.Tensor, chance: tf.Tensor) -> tf.Tensor:
        return function(pixels, tf.where(chance[0] < 0.5, -argument, argument))

    on_device = _by_version(function, lambda version, pixels, a, sign: version(pixels, sign * a))
    return Distortion(argument, apply, on_device)


def _by_version(function: Callable[..., tf.Tensor], act: Callable[..., jax.Array]) -> Any:
    """`act` with the version of an effect for devices; None without one."""
    version = device_effects.VERSIONS.get(function)
    return None if version is None else functools.partial(act, version)


def _any_factor(function: _Change) -> Distortion:
    """In TrivialAugment: a factor of 1 + 0.99 L or 1 - 0.99 L of a level L up to 1."""
    return _either_way(_up_to(0.99), lambda pixels, change: function(pixels, 1 + change))


_TENTHS = np.arange(20, dtype=np.float32) / 10  # XLA would multiply by 0.1


def _around_1(function: _Change) -> Distortion:
    """In PyTorch's version: a factor of 1 + 0.1 L or 1 - 0.1 L, in tenths: 0.4, not 1 - 0.6."""

    def on_device(version: Any, pixels: jax.Array, a: jax.Array, sign: jax.Array) -> jax.Array:
        tenths = jnp.round(10 * (1 + sign * a)).astype(int)
        return version(pixels, jnp.array(_TENTHS)[tenths])

    return _either_way(
        _ninths(0.9), lambda pixels, change: function(pixels, tf.round(10 * (1 + change)) / 10)
    )._replace(on_device=_by_version(function, on_device))


def _shear(axis: int) -> Distortion:
    """In PyTorch's version: up to 0.3 at level 9, in double precision, by cubic interpolation."""

    def apply(pixels: tf.Tensor, level: tf.Tensor) -> tf.Tensor:
        slopes = [0.0, 0.0]
        slopes[axis] = tf.cast(level, tf.float64) * (0.3 / 9)
        return effects.interpolated(pixels, (1.0, slopes[0], 0.0), (slopes[1], 1.0, 0.0))

    def on_device(pixels: jax.Array, level: jax.Array, sign: jax.Array) -> jax.Array:
        return device_effects.shear(pixels, sign * level * (0.3 / 9), axis, is_cubic=True)

    return _either_way(_ninths(9), apply)._replace(on_device=on_device)


def _contrast_with_size(pixels: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """Blends with a gray of the number of pixels / 256, at most 255."""
    num_pixels = tf.cast(tf.reduce_prod(tf.shape(pixels)[:2]), tf.float32)
    return effects.blend(tf.minimum(tf.floor(num_pixels / 256), 255.0), pixels, factor)


def _saturation_with_tf_luma(pixels: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    gray = tf.cast(tf.image.rgb_to_grayscale(pixels), tf.float32)
    return effects.blend(gray, pixels, factor)


# Keys: the papers' names.
DISTORTIONS: dict[str, Distortion] = {
    "AutoContrast": _plain(effects.autocontrast),
    "Equalize": _plain(effects.equalize),
    "Invert": _plain(effects.invert),
    "Rotate": _either_way(_up_to(30), effects.rotate),
    "Posterize": _with(_whole(4, lowest=1, highest=8), effects.posterize),
    "Solarize": _with(_whole(256, lowest=0, highest=256), effects.solarize),
    "Color": _with(_factor, effects.saturation),
    "Contrast": _with(_factor, effects.contrast),
    "Brightness": _with(_factor, effects.brightness),
    "Sharpness": _with(_factor, effects.sharpness),
    "ShearX": _either_way(_up_to(0.3), effects.shear_x),
    "ShearY": _either_way(_up_to(0.3), effects.shear_y),
    "TranslateX": _either_way(_up_to(100), effects.translate_x),
    "TranslateY": _either_way(_up_to(100), effects.translate_y),
    "Cutout": Distortion(
        lambda level: float(int(level * 40 / 10)),
        lambda pixels, half_side, chance: effects.cutout(pixels, half_side, chance[1:]),
    ),
    "SolarizeAdd": _with(_whole(110, lowest=0, highest=255), effects.solarize_add),
    "Solarize as published": _with(
        lambda level: float(int(level * 256 / 10) % 256), effects.solarize
    ),
    "Contrast as published": _with(_factor, _contrast_with_size),
    "Color as published": _with(_factor, _saturation_with_tf_luma),
    "Sharpness as published": _with(
        _factor, functools.partial(effects.sharpness, rounds_down=True)
    ),
    "Posterize as published": _with(
        lambda level: 8.0 - min((8 - int(level * 4 / 10)) % 256, 7), effects.posterize
    ),
    # PyTorch's version, which starts at the image as it is: see `autoaugment`.
    "Rotate in torch": _with(_ninths(30), effects.rotate),
    "Posterize in torch": _with(
        lambda level: max(float(round(8 - level * 4 / 9)), 0.0), effects.posterize
    ),
    "Solarize in torch": _with(_ninths(-256, start=256), effects.solarize),
    "Color in torch": _around_1(effects.saturation),
    "Contrast in torch": _around_1(effects.contrast),
    "Brightness in torch": _around_1(effects.brightness),
    "Sharpness in torch": _around_1(effects.sharpness),
    "ShearX in torch": _shear(0),
    "ShearY in torch": _shear(1),
    "TranslateX in torch": _either_way(_ninths(150 / 331), effects.translate_by_width),
    "TranslateY in torch": _either_way(_ninths(150 / 331), effects.translate_by_height),
    # TrivialAugment's wide ranges, from the image as it is: see `trivialaugment`.
    "ShearX wide": _either_way(_up_to(0.99), effects.shear_x),
    "ShearY wide": _either_way(_up_to(0.99), effects.shear_y),
    "TranslateX wide": _either_way(_up_to(32), effects.translate_x),
    "TranslateY wide": _either_way(_up_to(32), effects.translate_y),
    "Rotate wide": _either_way(_up_to(135), effects.rotate),
    "Brightness wide": _any_factor(effects.brightness),
    "Color wide": _any_factor(effects.saturation),
    "Contrast wide": _any_factor(effects.contrast),
    "Sharpness wide": _any_factor(effects.sharpness),
    "Posterize wide": _with(lambda level: 8.0 - round(level * 6 / 10), effects.posterize),
    "Solarize wide": _with(lambda level: 255 - level * 25.5, effects.solarize),
    # AutoAugment as released moves farther than RandAugment; as in the paper, by 150 of 331 pixels.
    "TranslateY far": _either_way(_up_to(250), effects.translate_y),
    "TranslateX of width": _either_way(_up_to(150 / 331), effects.translate_by_width),
    "TranslateY of height": _either_way(_up_to(150 / 331), effects.translate_by_height),
}


CHOICES = (
    "AutoContrast", "Equalize", "Invert", "Rotate", "Posterize", "Solarize", "Color", "Contrast",
    "Brightness", "Sharpness", "ShearX", "ShearY", "TranslateX", "TranslateY", "Cutout",
    "SolarizeAdd",
)  # fmt: skip


def named(name: str, version: str) -> str:
    """The name of a distortion in a version, "as published" or "in torch", if it differs there."""
    other = f"{name.split(' of ', maxsplit=1)[0]} {version}"
    return other if other in DISTORTIONS else name


AS_PUBLISHED = tuple(named(name, "as published") for name in CHOICES)
_MAX_MAGNITUDE = 30  # the limit of the paper's search, section 4


def randaugment(num_ops: int, magnitude: float, legacy: bool = False) -> Op:
    """`num_ops` distortions one after the other, each drawn uniformly from sixteen.

    `magnitude`, 0 to 30, is a level; `legacy`: with the bugs of the published code.
    """
    most = len(CHOICES)
    is_valid = type(num_ops) is int and 1 <= num_ops <= most
    check(is_valid, f"num_ops must be a whole number from 1 to {most}")
    check_number("magnitude", magnitude, at_least=0, at_most=_MAX_MAGNITUDE)
    names = AS_PUBLISHED if legacy else CHOICES
    arguments = [DISTORTIONS[name].argument(magnitude) for name in names]

    def apply(pixels: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        draws = tf.random.stateless_uniform([num_ops, 4], seed)
        choices = tf.cast(draws[:, 0] * len(names), tf.int32)
        of_choices = tf.gather(tf.constant(arguments), choices)
        for i in range(num_ops):
            pixels = distort(pixels, names, choices[i], of_choices[i], draws[i, 1:])
        return pixels

    return same_size(apply)


WIDE = (
    *(name for name in DISTORTIONS if name.endswith(" wide")), "AutoContrast", "Equalize",
)  # fmt: skip
LEVELS = 31  # of each, from none to all of its range


def trivialaugment() -> Op:
    """One distortion at a uniformly drawn level, or none, each of fourteen equally often.

    "Wide" TrivialAugment (arXiv 2103.10158, table 1), the default of its code and of torchvision.
    """
    arguments = [
        [DISTORTIONS[name].argument(10 * level / (LEVELS - 1)) for level in range(LEVELS)]
        for name in WIDE
    ]

    def apply(pixels: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        draws = tf.random.stateless_uniform([5], seed)
        choice = tf.cast(draws[0] * (len(WIDE) + 1), tf.int32) - 1  # NOTHING, or a distortion
        level = tf.cast(draws[1] * LEVELS, tf.int32)
        argument = tf.constant(arguments)[tf.maximum(choice, 0), level]
        return distort(pixels, WIDE, choice, argument, draws[2:])

    return same_size(apply)


_Step = tuple[str, float, int]
_RELEASED = {"TranslateY": "TranslateY far"}  # in `v0`, beside RandAugment's


def autoaugment(policy: str, legacy: bool = False, torch: bool = False) -> Op:
    """Applies a uniformly drawn sub-policy of `policy`, each distortion with its probability.

    `legacy`: with the bugs of the published code; `torch`: with the levels, signs and interpolation
    that programs in PyTorch have (github.com/DeepVoltaire/AutoAugment), ten from none to all.
    """
    check_choice("policy", policy, POLICIES)
    check(not (legacy and torch), "legacy and torch are two versions: give one of them")
    check(not torch or policy != "v0", "the policy 'v0' has no version in PyTorch: leave torch out")
    version = "as published" if legacy else "in torch" if torch else ""
    sub_policies = [
        [(named(_RELEASED.get(name, name), version), p, level) for name, p, level in steps]
        for steps in POLICIES[policy]
    ]
    names = sorted({name for steps in sub_policies for name, _, _ in steps})
    choices = [[names.index(name) for name, _, _ in steps] for steps in sub_policies]
    probabilities = [[probability for _, probability, _ in steps] for steps in sub_policies]
    arguments = [
        [DISTORTIONS[name].argument(level) for name, _, level in steps] for steps in sub_policies
    ]

    def apply(pixels: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        draws = tf.random.stateless_uniform([9], seed)
        number = tf.cast(draws[0] * len(sub_policies), tf.int32)
        happens = draws[1:3] < tf.constant(probabilities)[number]
        choice = tf.where(happens, tf.constant(choices)[number], NOTHING)
        argument, chance = tf.constant(arguments)[number], tf.reshape(draws[3:], [2, 3])
        for i in range(2):
            pixels = distort(pixels, names, choice[i], argument[i], chance[i])
        return pixels

    versions = [DISTORTIONS[name].on_device for name in names]

    def apply_on_device(pixels: jax.Array, draws: jax.Array) -> jax.Array:
        changes: list[Any] = [lambda pixels, *_: pixels, *versions]
        number = (draws[0] * len(sub_policies)).astype(jnp.int32)
        happens = draws[1:3] < jnp.array(probabilities)[number]
        choice = jnp.where(happens, jnp.array(choices)[number], NOTHING)
        argument, chance = jnp.array(arguments)[number], draws[3::3]
        for i in range(2):
            sign = jnp.where(chance[i] < 0.5, -1.0, 1.0)
            pixels = jax.lax.switch(choice[i] + 1, changes, pixels, argument[i], sign)
        return pixels

    return same_size(apply, None if None in versions else OnDevice(9, apply_on_device))


def _sub_policies(text: str) -> tuple[tuple[_Step, _Step], ...]:
    """Parses "Invert 0.1 0 + Contrast 0.2 6, ..."; names may have spaces."""
    steps = re.findall(r"([A-Z][A-Za-z ]*) ([0-9.]+) ([0-9]+)", text)
    parsed = [(name, float(probability), int(level)) for name, probability, level in steps]
    return tuple(zip(parsed[::2], parsed[1::2], strict=True))


# The published policies: twice (distortion, probability, level), 25 times. `v0` is the one that the
# authors released with their TensorFlow implementation. The others are the paper's (appendix; its
# tables give ops without an argument a level, which is 0 here); they translate by a part of the
# image's side, as for the images that the policies were searched on.
POLICIES: dict[str, tuple[tuple[_Step, _Step], ...]] = {
    "v0": _sub_policies("""
        Equalize 0.8 1 + ShearY 0.8 4,        Color 0.4 9 + Equalize 0.6 3,
        Color 0.4 1 + Rotate 0.6 8,           Solarize 0.8 3 + Equalize 0.4 7,
        Solarize 0.4 2 + Solarize 0.6 2,      Color 0.2 0 + Equalize 0.8 8,
        Equalize 0.4 8 + SolarizeAdd 0.8 3,   ShearX 0.2 9 + Rotate 0.6 8,
        Color 0.6 1 + Equalize 1.0 2,         Invert 0.4 9 + Rotate 0.6 0,
        Equalize 1.0 9 + ShearY 0.6 3,        Color 0.4 7 + Equalize 0.6 0,
        Posterize 0.4 6 + AutoContrast 0.4 7, Solarize 0.6 8 + Color 0.6 9,
        Solarize 0.2 4 + Rotate 0.8 9,        Rotate 1.0 7 + TranslateY 0.8 9,
        ShearX 0.0 0 + Solarize 0.8 4,        ShearY 0.8 0 + Color 0.6 4,
        Color 1.0 0 + Rotate 0.6 2,           Equalize 0.8 4 + Equalize 0.0 8,
        Equalize 1.0 4 + AutoContrast 0.6 2,  ShearY 0.4 7 + SolarizeAdd 0.6 7,
        Posterize 0.8 2 + Solarize 0.6 10,    Solarize 0.6 8 + Equalize 0.6 1,
        Color 0.8 6 + Rotate 0.4 5
    """),
    "imagenet": _sub_policies("""
        Posterize 0.4 8 + Rotate 0.6 9,      Solarize 0.6 5 + AutoContrast 0.6 0,
        Equalize 0.8 0 + Equalize 0.6 0,     Posterize 0.6 7 + Posterize 0.6 6,
        Equalize 0.4 0 + Solarize 0.2 4,     Equalize 0.4 0 + Rotate 0.8 8,
        Solarize 0.6 3 + Equalize 0.6 0,     Posterize 0.8 5 + Equalize 1.0 0,
        Rotate 0.2 3 + Solarize 0.6 8,       Equalize 0.6 0 + Posterize 0.4 6,
        Rotate 0.8 8 + Color 0.4 0,          Rotate 0.4 9 + Equalize 0.6 0,
        Equalize 0.0 0 + Equalize 0.8 0,     Invert 0.6 0 + Equalize 1.0 0,
        Color 0.6 4 + Contrast 1.0 8,        Rotate 0.8 8 + Color 1.0 2,
        Color 0.8 8 + Solarize 0.8 7,        Sharpness 0.4 7 + Invert 0.6 0,
        ShearX 0.6 5 + Equalize 1.0 0,       Color 0.4 0 + Equalize 0.6 0,
        Equalize 0.4 0 + Solarize 0.2 4,     Solarize 0.6 5 + AutoContrast 0.6 0,
        Invert 0.6 0 + Equalize 1.0 0,       Color 0.6 4 + Contrast 1.0 8,
        Equalize 0.8 0 + Equalize 0.6 0
    """),
    "cifar10": _sub_policies("""
        Invert 0.1 0 + Contrast 0.2 6,                Rotate 0.7 2 + TranslateX of width 0.3 9,
        Sharpness 0.8 1 + Sharpness 0.9 3,            ShearY 0.5 8 + TranslateY of height 0.7 9,
        AutoContrast 0.5 0 + Equalize 0.9 0,          ShearY 0.2 7 + Posterize 0.3 7,
        Color 0.4 3 + Brightness 0.6 7,               Sharpness 0.3 9 + Brightness 0.7 9,
        Equalize 0.6 0 + Equalize 0.5 0,              Contrast 0.6 7 + Sharpness 0.6 5,
        Color 0.7 7 + TranslateX of width 0.5 8,      Equalize 0.3 0 + AutoContrast 0.4 0,
        TranslateY of height 0.4 3 + Sharpness 0.2 6, Brightness 0.9 6 + Color 0.2 8,
        Solarize 0.5 2 + Invert 0.0 0,                Equalize 0.2 0 + AutoContrast 0.6 0,
        Equalize 0.2 0 + Equalize 0.6 0,              Color 0.9 9 + Equalize 0.6 0,
        AutoContrast 0.8 0 + Solarize 0.2 8,          Brightness 0.1 3 + Color 0.7 0,
        Solarize 0.4 5 + AutoContrast 0.9 0,
        TranslateY of height 0.9 9 + TranslateY of height 0.7 9,AutoContrast 0.9 0 + Solarize 0.8 3,
        Equalize 0.8 0 + Invert 0.1 0,
        TranslateY of height 0.7 9 + AutoContrast 0.9 0
    """),
    "svhn": _sub_policies("""
        ShearX 0.9 4 + Invert 0.2 0,                 ShearY 0.9 8 + Invert 0.7 0,
        Equalize 0.6 0 + Solarize 0.6 6,             Invert 0.9 0 + Equalize 0.6 0,
        Equalize 0.6 0 + Rotate 0.9 3,               ShearX 0.9 4 + AutoContrast 0.8 0,
        ShearY 0.9 8 + Invert 0.4 0,                 ShearY 0.9 5 + Solarize 0.2 6,
        Invert 0.9 0 + AutoContrast 0.8 0,           Equalize 0.6 0 + Rotate 0.9 3,
        ShearX 0.9 4 + Solarize 0.3 3,               ShearY 0.8 8 + Invert 0.7 0,
        Equalize 0.9 0 + TranslateY of height 0.6 6, Invert 0.9 0 + Equalize 0.6 0,
        Contrast 0.3 3 + Rotate 0.8 4,               Invert 0.8 0 + TranslateY of height 0.0 2,
        ShearY 0.7 6 + Solarize 0.4 8,               Invert 0.6 0 + Rotate 0.8 4,
        ShearY 0.3 7 + TranslateX of width 0.9 3,    ShearX 0.1 6 + Invert 0.6 0,
        Solarize 0.7 2 + TranslateY of height 0.6 7, ShearY 0.8 4 + Invert 0.8 0,
        ShearX 0.7 9 + TranslateY of height 0.8 3,   ShearY 0.8 5 + AutoContrast 0.7 0,
        ShearX 0.7 2 + Invert 0.1 0
    """),
}
