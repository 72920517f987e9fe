"""Effects in JAX, for images that lie on the devices: uint8 [H, W, 3] -> uint8 [H, W, 3].

They are those of effects.py, but for a level in a few pixels of blends, and for points that
geometric ones look up in single precision, where the last bit decides.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from vit_jax.data.ops import effects
from vit_jax.data.ops.effects import GRAY, LUMA, TO_THE_RIGHT, cubic


def _blend(other: jax.Array | float, pixels: jax.Array, factor: jax.Array) -> jax.Array:
    blended = other + factor * (pixels.astype(jnp.float32) - other)
    # Factors are hundredths: a fused multiply-add must not end just below a whole number.
    return jnp.clip(blended + 2.0**-10, 0, 255).astype(jnp.uint8)


def _luma(pixels: jax.Array) -> jax.Array:
    weighted = (pixels.astype(jnp.int32) * jnp.array(LUMA, jnp.int32)).sum(-1, keepdims=True)
    return (weighted + 2**15) // 2**16


def _contrast(pixels: jax.Array, factor: jax.Array) -> jax.Array:
    luma = _luma(pixels)
    return _blend(jnp.float32((2 * luma.sum() + luma.size) // (2 * luma.size)), pixels, factor)


def _saturation(pixels: jax.Array, factor: jax.Array) -> jax.Array:
    return _blend(_luma(pixels).astype(jnp.float32), pixels, factor)


def _sharpness(pixels: jax.Array, factor: jax.Array) -> jax.Array:
    if min(pixels.shape[:2]) < 3:
        return pixels
    x = pixels.astype(jnp.int32)
    rows = x[:-2] + x[1:-1] + x[2:]
    sums = rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:] + 4 * x[1:-1, 1:-1]
    smoothed = ((sums + 6) // 13).astype(jnp.float32)
    return pixels.at[1:-1, 1:-1].set(_blend(smoothed, pixels[1:-1, 1:-1], factor))


def _autocontrast(pixels: jax.Array) -> jax.Array:
    x = pixels.astype(jnp.int32)
    low, high = x.min((0, 1)), x.max((0, 1))
    stretched = (x - low) * 255 // jnp.maximum(high - low, 1)
    return jnp.where(low == high, x, stretched).astype(jnp.uint8)


def _equalize(pixels: jax.Array) -> jax.Array:
    def equalized(channel: jax.Array) -> jax.Array:
        counts = jnp.zeros(256, jnp.int32).at[channel.ravel()].add(1)
        step = (channel.size - counts[channel.max()]) // 255
        spread = (jnp.cumsum(counts) - counts + step // 2) // jnp.maximum(step, 1)
        table = jnp.where(step > 0, jnp.minimum(spread, 255), jnp.arange(256))
        return table.astype(jnp.uint8)[channel]

    return jax.vmap(equalized, -1, -1)(pixels.astype(jnp.int32))


def _solarize(pixels: jax.Array, threshold: jax.Array) -> jax.Array:
    return jnp.where(pixels.astype(jnp.float32) >= threshold, 255 - pixels, pixels)


def _posterize(pixels: jax.Array, bits: jax.Array) -> jax.Array:
    return pixels & (256 - 2.0 ** (8 - bits)).astype(jnp.uint8)


def _affine(
    pixels: jax.Array,
    x_from: Sequence[jax.Array | float],
    y_from: Sequence[jax.Array | float],
    *,
    is_centred: bool = False,
    is_cubic: bool = False,
) -> jax.Array:
    """As effects.affine, about the corner or the centre; cubic as effects.interpolated."""
    height, width = pixels.shape[:2]
    origin = (width / 2, height / 2) if is_centred else (0.0, 0.0)
    x = jnp.arange(width, dtype=jnp.float32) + 0.5 - origin[0]
    y = jnp.arange(height, dtype=jnp.float32)[:, None] + 0.5 - origin[1]
    at = [
        a * x + b * y + (c + start)
        for (a, b, c), start in zip((x_from, y_from), origin, strict=True)
    ]
    inside = (at[0] >= 0) & (at[0] < width) & (at[1] >= 0) & (at[1] < height)

    def look_up(columns: jax.Array, rows: jax.Array) -> jax.Array:
        return pixels[jnp.clip(rows, 0, height - 1), jnp.clip(columns, 0, width - 1)]

    if is_cubic:
        low = [jnp.floor(v - 0.5) for v in at]
        parts = [(v - 0.5 - whole)[..., None] for v, whole in zip(at, low, strict=True)]
        columns, rows = (whole.astype(jnp.int32) for whole in low)
        near = (-1, 0, 1, 2)
        lines = [
            cubic([look_up(columns + i, rows + j).astype(jnp.float32) for i in near], parts[0])
            for j in near
        ]
        values = jnp.clip(cubic(lines, parts[1]), 0, 255).astype(jnp.uint8)
    else:
        columns, rows = (jnp.floor(v + TO_THE_RIGHT).astype(jnp.int32) for v in at)
        inside = (columns >= 0) & (columns < width) & (rows >= 0) & (rows < height)
        values = look_up(columns, rows)
    return jnp.where(inside[..., None], values, jnp.uint8(GRAY))


def _rotate(pixels: jax.Array, degrees: jax.Array) -> jax.Array:
    cos, sin = jnp.cos(degrees * math.radians(1)), jnp.sin(degrees * math.radians(1))
    return _affine(pixels, (cos, -sin, 0.0), (sin, cos, 0.0), is_centred=True)


def shear(pixels: jax.Array, slope: jax.Array, axis: int, *, is_cubic: bool = False) -> jax.Array:
    """As effects.shear_x, axis 0, and shear_y, axis 1; cubic as effects.interpolated."""
    x_slope, y_slope = (slope, 0.0) if axis == 0 else (0.0, slope)
    return _affine(pixels, (1.0, x_slope, 0.0), (y_slope, 1.0, 0.0), is_cubic=is_cubic)


def _translate(pixels: jax.Array, part: jax.Array, axis: int) -> jax.Array:
    height, width = pixels.shape[:2]
    shift = (part * width, 0.0) if axis == 0 else (0.0, part * height)
    return _affine(pixels, (1.0, 0.0, shift[0]), (0.0, 1.0, shift[1]))


# By the effects that they are versions of.
VERSIONS: dict[Callable[..., Any], Callable[..., jax.Array]] = {
    effects.autocontrast: _autocontrast,
    effects.equalize: _equalize,
    effects.invert: lambda pixels: 255 - pixels,
    effects.posterize: _posterize,
    effects.solarize: _solarize,
    effects.saturation: _saturation,
    effects.contrast: _contrast,
    effects.brightness: functools.partial(_blend, 0.0),
    effects.sharpness: _sharpness,
    effects.rotate: _rotate,
    effects.shear_x: functools.partial(shear, axis=0),
    effects.shear_y: functools.partial(shear, axis=1),
    effects.translate_by_width: functools.partial(_translate, axis=0),
    effects.translate_by_height: functools.partial(_translate, axis=1),
}
