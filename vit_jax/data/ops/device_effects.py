"""Distortions in JAX, for images that lie on the devices: those of autoaugment.DISTORTIONS.

Each takes uint8 [H, W, 3], its argument, float32 [], and the sign or 1, and gives uint8 [H, W, 3].
They are those of effects.py, but for a level in a few pixels of blends, and for points that
geometric ones look up in single precision, where the last bit decides.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.data.ops.effects import GRAY, LUMA, TO_THE_RIGHT, cubic

Change = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


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


def _autocontrast(pixels: jax.Array, *_: jax.Array) -> jax.Array:
    x = pixels.astype(jnp.int32)
    low, high = x.min((0, 1)), x.max((0, 1))
    stretched = (x - low) * 255 // jnp.maximum(high - low, 1)
    return jnp.where(low == high, x, stretched).astype(jnp.uint8)


def _equalize(pixels: jax.Array, *_: jax.Array) -> jax.Array:
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


def _shear(pixels: jax.Array, slope: jax.Array, *, axis: str, is_cubic: bool) -> jax.Array:
    x_slope, y_slope = (slope, 0.0) if axis == "X" else (0.0, slope)
    return _affine(pixels, (1.0, x_slope, 0.0), (y_slope, 1.0, 0.0), is_cubic=is_cubic)


def _translate(pixels: jax.Array, part: jax.Array, *, axis: str) -> jax.Array:
    height, width = pixels.shape[:2]
    shift = (part * width, 0.0) if axis == "X" else (0.0, part * height)
    return _affine(pixels, (1.0, 0.0, shift[0]), (0.0, 1.0, shift[1]))


def _with(function: Callable[[jax.Array, jax.Array], jax.Array]) -> Change:
    return lambda pixels, argument, sign: function(pixels, argument)


def _either_way(function: Callable[[jax.Array, jax.Array], jax.Array]) -> Change:
    return lambda pixels, argument, sign: function(pixels, sign * argument)


def _around_1(function: Callable[[jax.Array, jax.Array], jax.Array]) -> Change:
    """A factor in tenths, as autoaugment._around_1."""
    tenths = np.arange(20, dtype=np.float32) / 10  # XLA would multiply by 0.1

    def apply(pixels: jax.Array, argument: jax.Array, sign: jax.Array) -> jax.Array:
        return function(
            pixels, jnp.array(tenths)[jnp.round(10 * (1 + sign * argument)).astype(int)]
        )

    return apply


def _both_axes(name: str, change: Callable[..., jax.Array], **options: bool) -> dict[str, Change]:
    return {
        name.format(axis): _either_way(functools.partial(change, axis=axis, **options))
        for axis in "XY"
    }


_FACTORS: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "Color": _saturation,
    "Contrast": _contrast,
    "Brightness": functools.partial(_blend, 0.0),
    "Sharpness": _sharpness,
}

# By the names of autoaugment.DISTORTIONS, as far as they have a version for devices.
CHANGES: dict[str, Change] = {
    "AutoContrast": _autocontrast,
    "Equalize": _equalize,
    "Invert": lambda pixels, *_: 255 - pixels,
    "Rotate": _either_way(_rotate),
    "Rotate in torch": _with(_rotate),
    "Posterize": _with(_posterize),
    "Posterize in torch": _with(_posterize),
    "Solarize": _with(_solarize),
    "Solarize in torch": _with(_solarize),
    **{name: _with(function) for name, function in _FACTORS.items()},
    **{f"{name} in torch": _around_1(function) for name, function in _FACTORS.items()},
    **_both_axes("Shear{}", _shear, is_cubic=False),
    **_both_axes("Shear{} in torch", lambda x, level, **how: _shear(x, level * (0.3 / 9), **how),
                 is_cubic=True),
    **_both_axes("Translate{} in torch", _translate),
    "TranslateX of width": _either_way(functools.partial(_translate, axis="X")),
    "TranslateY of height": _either_way(functools.partial(_translate, axis="Y")),
}  # fmt: skip


def distort(
    pixels: jax.Array,
    names: Sequence[str],
    choice: jax.Array,
    argument: jax.Array,
    chance: jax.Array,
) -> jax.Array:
    """As autoaugment.distort; `chance` is one number, for the sign."""
    sign = jnp.where(chance < 0.5, -1.0, 1.0)
    changes: list[Change] = [lambda pixels, *_: pixels, *(CHANGES[name] for name in names)]
    return jax.lax.switch(choice + 1, changes, pixels, argument, sign)
