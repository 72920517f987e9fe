"""The distortions that RandAugment and AutoAugment choose from, and the meaning of levels.

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
from collections.abc import Callable, Sequence
from typing import NamedTuple

from vit_jax.data.host_tf import tf
from vit_jax.data.ops import effects

NOTHING = -1  # the choice that leaves an image as it is


class Reach(NamedTuple):
    """Limits at level 10, in pixels, which differ between RandAugment and AutoAugment."""

    translate_px: int
    cutout_px: int


class Distortion(NamedTuple):
    """A distortion: its argument by level, and its effect by argument.

    `chance` is float32 [3], uniform in [0, 1): for the sign, and for a place (y, x).
    """

    argument: Callable[[float, Reach], float]
    apply: Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]  # (pixels, argument, chance)


def distort(
    pixels: tf.Tensor,
    names: Sequence[str],
    choice: tf.Tensor,
    argument: tf.Tensor,
    chance: tf.Tensor,
) -> tf.Tensor:
    """Applies the distortion `choice`, int32 [], of `names`; uint8 [H, W, 3] -> uint8 [H, W, 3]."""
    branches = {
        i: functools.partial(DISTORTIONS[name].apply, pixels, argument, chance)
        for i, name in enumerate(names)
    }
    distorted = tf.switch_case(choice, branches, default=lambda: pixels)
    return tf.ensure_shape(distorted, pixels.shape)


def _factor(level: float, reach: Reach) -> float:
    return level / 10 * 1.8 + 0.1


def _distance_px(level: float, reach: Reach) -> float:
    return level * reach.translate_px / 10


def _up_to(limit: float) -> Callable[[float, Reach], float]:
    return lambda level, reach: level * limit / 10


def _whole(limit: float, lowest: int, highest: int) -> Callable[[float, Reach], float]:
    return lambda level, reach: float(min(max(int(level * limit / 10), lowest), highest))


def _plain(function: Callable[[tf.Tensor], tf.Tensor]) -> Distortion:
    return Distortion(lambda level, reach: 0.0, lambda pixels, argument, chance: function(pixels))


def _with(
    argument: Callable[[float, Reach], float],
    function: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
) -> Distortion:
    return Distortion(argument, lambda pixels, argument, chance: function(pixels, argument))


def _either_way(
    argument: Callable[[float, Reach], float],
    function: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
) -> Distortion:
    """The argument or its negative, equally often."""

    def apply(pixels: tf.Tensor, argument: tf.Tensor, chance: tf.Tensor) -> tf.Tensor:
        return function(pixels, tf.where(chance[0] < 0.5, -argument, argument))

    return Distortion(argument, apply)


def _side(pixels: tf.Tensor, axis: int) -> tf.Tensor:
    return tf.cast(tf.shape(pixels)[axis], tf.float32)


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
    "TranslateX": _either_way(_distance_px, effects.translate_x),
    "TranslateY": _either_way(_distance_px, effects.translate_y),
    "Cutout": Distortion(
        lambda level, reach: float(int(level * reach.cutout_px / 10)),
        lambda pixels, half_side, chance: effects.cutout(pixels, half_side, chance[1:]),
    ),
    "SolarizeAdd": _with(_whole(110, lowest=0, highest=255), effects.solarize_add),
    "Solarize as published": _with(
        lambda level, reach: float(int(level * 256 / 10) % 256), effects.solarize
    ),
    "Contrast as published": _with(_factor, _contrast_with_size),
    "Color as published": _with(_factor, _saturation_with_tf_luma),
    "Sharpness as published": _with(
        _factor, functools.partial(effects.sharpness, rounds_down=True)
    ),
    "Posterize as published": _with(
        lambda level, reach: 8.0 - min((8 - int(level * 4 / 10)) % 256, 7), effects.posterize
    ),
    # The AutoAugment paper's own, for images of any size: 150 pixels of 331.
    "TranslateX of width": _either_way(
        _up_to(150 / 331),
        lambda pixels, part: effects.translate_x(pixels, part * _side(pixels, 1)),
    ),
    "TranslateY of height": _either_way(
        _up_to(150 / 331),
        lambda pixels, part: effects.translate_y(pixels, part * _side(pixels, 0)),
    ),
}
