"""Random changes of colours and sharpness, and erasing: what recipes use beside RandAugment."""

from __future__ import annotations

import functools
import math

from vit_jax.data.host_tf import tf
from vit_jax.data.ops import effects
from vit_jax.data.ops.op import Op, check, check_number, same_size, sometimes

_MAX_STRENGTH = 10
_MAX_SIGMA_PX = 100
# DeiT III (arXiv 2204.07118), section 3.2; its code gives the numbers.
_THREE_AUGMENT_THRESHOLD = 128
_THREE_AUGMENT_SIGMAS_PX = (0.1, 2.0)
_ERASING_TRIES = 10


def color_jitter(
    brightness: float = 0.0,
    contrast: float = 0.0,
    saturation: float = 0.0,
    hue: float = 0.0,
    probability: float = 1.0,
) -> Op:
    """Makes four changes in random order, each of a strength drawn uniformly.

    The first three have a factor in [max(0, 1 - s), 1 + s] for the argument s, as torchvision
    defines it, and hues are turned by up to `hue` of the circle in either direction. With
    `probability` below 1, which DINO and others have at 0.8, the rest of the images stay unchanged.
    """
    check_number("brightness", brightness, at_least=0, at_most=_MAX_STRENGTH)
    check_number("contrast", contrast, at_least=0, at_most=_MAX_STRENGTH)
    check_number("saturation", saturation, at_least=0, at_most=_MAX_STRENGTH)
    check_number("hue", hue, at_least=0, at_most=0.5)
    ranges = (
        (effects.brightness, max(0, 1 - brightness), 1 + brightness),
        (effects.contrast, max(0, 1 - contrast), 1 + contrast),
        (effects.saturation, max(0, 1 - saturation), 1 + saturation),
        (effects.hue, -hue, hue),
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

    return same_size(apply) if probability == 1 else sometimes(probability, apply)


def grayscale(probability: float) -> Op:
    """Puts the luma into all three channels."""
    return sometimes(probability, lambda pixels, seed: effects.grayscale(pixels))


def solarize(probability: float, threshold: int = 128) -> Op:
    """Negates values that are at least `threshold`, 0 to 256."""
    check_number("threshold", threshold, at_least=0, at_most=256)
    return sometimes(probability, lambda pixels, seed: effects.solarize(pixels, threshold))


def gaussian_blur(probability: float, sigma_min: float = 0.1, sigma_max: float = 2.0) -> Op:
    """Blurs by a Gaussian of `sigma_min` to `sigma_max` pixels, drawn uniformly."""
    check_number("sigma_min", sigma_min, at_least=0, at_most=_MAX_SIGMA_PX)
    check_number("sigma_max", sigma_max, at_least=0, at_most=_MAX_SIGMA_PX)
    check(0 < sigma_min <= sigma_max, "0 < sigma_min <= sigma_max must hold")
    return sometimes(probability, lambda pixels, seed: _blurred(pixels, sigma_min, sigma_max, seed))


def three_augment() -> Op:
    """Applies grayscale, solarize at 128 or a Gaussian blur of 0.1 to 2 pixels, equally often.

    Touvron et al., DeiT III (arXiv 2204.07118), section 3.2, where color_jitter(0.3, 0.3, 0.3)
    follows it.
    """

    def apply(pixels: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        choice_seed, blur_seed = tf.unstack(tf.random.experimental.stateless_split(seed, 2))
        choice = tf.random.stateless_uniform([], choice_seed, maxval=3, dtype=tf.int32)
        return tf.switch_case(
            choice,
            [
                lambda: effects.grayscale(pixels),
                lambda: effects.solarize(pixels, _THREE_AUGMENT_THRESHOLD),
                lambda: _blurred(pixels, *_THREE_AUGMENT_SIGMAS_PX, blur_seed),
            ],
        )

    return same_size(apply)


def _blurred(pixels: tf.Tensor, sigma_min: float, sigma_max: float, seed: tf.Tensor) -> tf.Tensor:
    sigma = sigma_min + (sigma_max - sigma_min) * tf.random.stateless_uniform([], seed)
    return effects.gaussian_blur(pixels, sigma)


def random_erasing(
    probability: float, area_min: float = 0.02, area_max: float = 0.4, aspect_min: float = 0.3
) -> Op:
    """Fills a rectangle, `area_min` to `area_max` of the image, anywhere, with uniform noise.

    Its height is `aspect_min` to 1 / `aspect_min` of its width, drawn uniformly by its logarithm,
    so that neither side is favoured. Of ten rectangles the first that fits is taken. Defaults are
    the paper's for ImageNet, with a probability of 0.5; noise is its RE-R.
    """
    check_number("area_min", area_min, at_least=0, at_most=1)
    check_number("area_max", area_max, at_least=0, at_most=1)
    check(area_min <= area_max, "area_min must be at most area_max")
    check_number("aspect_min", aspect_min, at_least=0.01, at_most=1)

    def erased(pixels: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        window_seed, noise_seed = tf.unstack(tf.random.experimental.stateless_split(seed, 2))
        begin, extent = window(tf.shape(pixels)[:2], window_seed)
        noise = tf.random.stateless_uniform(
            tf.concat([extent, [3]], 0), noise_seed, maxval=256, dtype=tf.int32
        )
        covered = effects.paste(pixels, tf.cast(noise, tf.uint8), begin)
        return tf.ensure_shape(covered, pixels.shape)

    def window(size: tf.Tensor, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """(top, left) and (height, width), int32 [2] each; 0 x 0 if none fits."""
        draws = tf.random.stateless_uniform([_ERASING_TRIES, 4], seed)
        area = area_min + (area_max - area_min) * draws[:, 0]
        area *= tf.cast(tf.reduce_prod(size), tf.float32)
        aspect = tf.exp((2 * draws[:, 1] - 1) * math.log(aspect_min))
        sides = tf.stack([tf.sqrt(area * aspect), tf.sqrt(area / aspect)], axis=1)
        extents = tf.cast(tf.round(sides), tf.int32)
        fits = tf.reduce_all(extents <= size, axis=1)
        first = tf.argmax(fits)
        extent = extents[first] * tf.cast(fits[first], tf.int32)
        room = tf.cast(size - extent + 1, tf.float32)
        return tf.cast(draws[first, 2:] * room, tf.int32), extent

    return sometimes(probability, erased)
