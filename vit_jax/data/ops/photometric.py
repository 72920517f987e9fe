"""Random changes of colour and sharpness: what strong recipes use beside RandAugment."""

from __future__ import annotations

import functools

from vit_jax.data.host_tf import tf
from vit_jax.data.ops import colours, filters
from vit_jax.data.ops.op import Op, check, check_number, same_size, sometimes

_MAX_STRENGTH = 10
_MAX_SIGMA_PX = 100
# DeiT III (arXiv 2204.07118), section 3.2; its code gives the numbers.
_THREE_AUGMENT_THRESHOLD = 128
_THREE_AUGMENT_SIGMAS_PX = (0.1, 2.0)


def color_jitter(
    brightness: float = 0.0, contrast: float = 0.0, saturation: float = 0.0, hue: float = 0.0
) -> Op:
    """Four changes in random order, each of a strength drawn uniformly.

    The first three have a factor in [max(0, 1 - s), 1 + s] for the argument s, as torchvision
    defines it, and hues are turned by up to `hue` of the circle in either direction.
    """
    check_number("brightness", brightness, at_least=0, at_most=_MAX_STRENGTH)
    check_number("contrast", contrast, at_least=0, at_most=_MAX_STRENGTH)
    check_number("saturation", saturation, at_least=0, at_most=_MAX_STRENGTH)
    check_number("hue", hue, at_least=0, at_most=0.5)
    ranges = (
        (colours.brightness, max(0, 1 - brightness), 1 + brightness),
        (colours.contrast, max(0, 1 - contrast), 1 + contrast),
        (colours.saturation, max(0, 1 - saturation), 1 + saturation),
        (colours.hue, -hue, hue),
    )
    wanted = [(change, low, high) for change, low, high in ranges if low < high]

    def changed(pixels: tf.Tensor, which: tf.Tensor, draw: tf.Tensor) -> tf.Tensor:
        branches = [
            functools.partial(change, pixels, low + (high - low) * draw)
            for change, low, high in wanted
        ]
        return tf.switch_case(which, branches)

    def apply(pixels: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        keys, draws = tf.unstack(tf.random.stateless_uniform([2, len(wanted)], seed))
        order = tf.argsort(keys)
        for i in range(len(wanted)):
            pixels = changed(pixels, order[i], draws[i])
        return pixels

    return same_size(apply)


def grayscale(probability: float) -> Op:
    """The luma in all three channels."""
    return sometimes(probability, lambda pixels, seed: colours.grayscale(pixels))


def solarize(probability: float, threshold: int = 128) -> Op:
    """The negative of values that are at least `threshold`, 0 to 256."""
    check_number("threshold", threshold, at_least=0, at_most=256)
    return sometimes(probability, lambda pixels, seed: colours.solarize(pixels, threshold))


def gaussian_blur(probability: float, sigma_min: float = 0.1, sigma_max: float = 2.0) -> Op:
    """Blurred by a Gaussian of `sigma_min` to `sigma_max` pixels, drawn uniformly."""
    check_number("sigma_min", sigma_min, at_least=0, at_most=_MAX_SIGMA_PX)
    check_number("sigma_max", sigma_max, at_least=0, at_most=_MAX_SIGMA_PX)
    check(0 < sigma_min <= sigma_max, "0 < sigma_min <= sigma_max must hold")
    return sometimes(probability, lambda pixels, seed: _blurred(pixels, sigma_min, sigma_max, seed))


def three_augment() -> Op:
    """One of three, equally often: grayscale, solarize at 128, a Gaussian blur of 0.1 to 2 pixels.

    Touvron et al., DeiT III (arXiv 2204.07118), section 3.2, where color_jitter(0.3, 0.3, 0.3)
    follows it.
    """

    def apply(pixels: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        of_choice, of_blur = tf.unstack(tf.random.experimental.stateless_split(seed, 2))
        choice = tf.random.stateless_uniform([], of_choice, maxval=3, dtype=tf.int32)
        return tf.switch_case(
            choice,
            [
                lambda: colours.grayscale(pixels),
                lambda: colours.solarize(pixels, _THREE_AUGMENT_THRESHOLD),
                lambda: _blurred(pixels, *_THREE_AUGMENT_SIGMAS_PX, of_blur),
            ],
        )

    return same_size(apply)


def _blurred(pixels: tf.Tensor, sigma_min: float, sigma_max: float, seed: tf.Tensor) -> tf.Tensor:
    sigma = sigma_min + (sigma_max - sigma_min) * tf.random.stateless_uniform([], seed)
    return filters.gaussian_blur(pixels, sigma)
