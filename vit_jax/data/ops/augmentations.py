"""Random changes of colours and sharpness, and erasing: what recipes use beside RandAugment."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

from vit_jax.data.host_tf import tf
from vit_jax.data.ops import effects
from vit_jax.data.ops.op import (
    OnDevice,
    Op,
    check,
    check_colour,
    check_number,
    same_size,
    sometimes,
    unchanged,
)

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

    The first three have a factor in [max(0, 1 - s), 1 + s] for the argument s, as in torchvision;
    hues are turned by up to `hue` of the circle either way. It happens with `probability`.
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

    if probability < 1:
        return sometimes(probability, apply)
    return same_size(apply, on_map=unchanged)


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

    DeiT III (arXiv 2204.07118), section 3.2, where color_jitter(0.3, 0.3, 0.3) follows it.
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

    return same_size(apply, on_map=unchanged)


def _blurred(pixels: tf.Tensor, sigma_min: float, sigma_max: float, seed: tf.Tensor) -> tf.Tensor:
    sigma = sigma_min + (sigma_max - sigma_min) * tf.random.stateless_uniform([], seed)
    return effects.gaussian_blur(pixels, sigma)


def random_erasing(
    probability: float,
    area_min: float = 0.02,
    area_max: float = 0.4,
    aspect_min: float = 0.3,
    fill: int | tuple[int, int, int] | None = None,
    log_aspect: bool = True,
) -> Op:
    """Fills a rectangle, `area_min` to `area_max` of the image, anywhere, with uniform noise.

    Its height is `aspect_min` to 1 / `aspect_min` of its width, drawn uniformly by its logarithm,
    or with log_aspect=False by itself, as in the authors' code. Of ten the first that fits is
    taken. Defaults are the paper's for ImageNet, with a probability of 0.5; `fill` is a value of 0
    to 255, or one for each of RGB, in place of noise.
    """
    check_number("area_min", area_min, at_least=0, at_most=1)
    check_number("area_max", area_max, at_least=0, at_most=1)
    check(area_min <= area_max, "area_min must be at most area_max")
    check_number("aspect_min", aspect_min, at_least=0.01, at_most=1)
    values = fill if isinstance(fill, tuple) else (fill,) * 3
    if fill is not None:
        check_colour("fill, or each of its three numbers,", values)
    check_number("probability", probability, at_least=0, at_most=1)
    num_draws = 1 + 4 * _ERASING_TRIES

    def apply(pixels: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        draws = tf.random.stateless_uniform([num_draws], seed)
        noise_seed = tf.random.experimental.stateless_split(seed, 2)[1]

        def erased() -> tf.Tensor:
            begin, extent = window(tf.shape(pixels)[:2], tf.reshape(draws[1:], [-1, 4]))
            shape = tf.concat([extent, [3]], 0)
            if fill is None:
                patch = tf.random.stateless_uniform(shape, noise_seed, maxval=256, dtype=tf.int32)
            else:
                patch = tf.broadcast_to(tf.constant(values), shape)
            covered = effects.paste(pixels, tf.cast(patch, tf.uint8), begin)
            return tf.ensure_shape(covered, pixels.shape)

        return tf.cond(draws[0] < probability, erased, lambda: pixels)

    def rectangles(numpy: Any, draws: Any, num_pixels: Any) -> Any:
        """Heights and widths by TensorFlow or JAX, whole float32 [tries, 2]."""
        area = (area_min + (area_max - area_min) * draws[:, 0]) * num_pixels
        aspect = aspect_min + (1 / aspect_min - aspect_min) * draws[:, 1]
        if log_aspect:
            aspect = numpy.exp((2 * draws[:, 1] - 1) * math.log(aspect_min))
        sides = [numpy.sqrt(area * aspect), numpy.sqrt(area / aspect)]
        return numpy.round(numpy.stack(sides, axis=1))

    def window(size: tf.Tensor, draws: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """(top, left) and (height, width), int32 [2] each; 0 x 0 if none fits."""
        num_pixels = tf.cast(tf.reduce_prod(size), tf.float32)
        extents = tf.cast(rectangles(tf, draws, num_pixels), tf.int32)
        fits = tf.reduce_all(extents <= size, axis=1)
        first = tf.argmax(fits)
        extent = extents[first] * tf.cast(fits[first], tf.int32)
        room = tf.cast(size - extent + 1, tf.float32)
        return tf.cast(draws[first, 2:] * room, tf.int32), extent

    def on_device(pixels: jax.Array, draws: jax.Array) -> jax.Array:
        happens, draws = draws[0] < probability, draws[1:].reshape(-1, 4)
        size = jnp.array(pixels.shape[:2])
        extents = rectangles(jnp, draws, size[0] * size[1]).astype(jnp.int32)
        fits = (extents <= size).all(axis=1)
        first = jnp.argmax(fits)
        extent = extents[first] * fits[first]
        begin = (draws[first, 2:] * (size - extent + 1)).astype(jnp.int32)
        rows, columns = jnp.arange(pixels.shape[0])[:, None], jnp.arange(pixels.shape[1])
        (top, left), (bottom, right) = begin, begin + extent
        covered = (rows >= top) & (rows < bottom) & (columns >= left) & (columns < right)
        covered = (covered & happens)[..., None]
        return jnp.where(covered, jnp.array(values, jnp.uint8), pixels)

    return same_size(apply, None if fill is None else OnDevice(num_draws, on_device))
