"""Entries of JSON files beside the arrays; UserError for any of a wrong type."""

import math
from collections.abc import Collection, Mapping
from typing import Any

from vit_jax import models
from vit_jax.core.errors import UserError, nearest

MAX_SIDE = 32_768  # pixels
Document = Mapping[str, Any]


def section(document: Document | None, key: str) -> Document:
    """A nested JSON object; empty if absent."""
    value = (document or {}).get(key)
    if not value:
        return {}
    if not isinstance(value, Mapping):
        raise _Wrong(key, value, "a JSON object")
    return value


def word(document: Document, key: str, default: str, choices: Collection[str]) -> str:
    """An entry that is one of `choices`."""
    value = document.get(key) or default
    if not isinstance(value, str) or value not in choices:
        raise UserError(f"config.json: {key}={short(value)}. {nearest(str(value), choices)}")
    return value


def flag(document: Document, key: str, default: bool) -> bool:
    """An entry that is true or false."""
    value = document.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise _Wrong(key, value, "true or false")
    return value


def positive(document: Document, key: str, default: float) -> float:
    """A finite number above 0."""
    value = document.get(key)
    if value is None:
        return default
    if not _is_number(value) or value <= 0:
        raise _Wrong(key, value, "a number above 0")
    return float(value)


def channels(document: Document, key: str, default: tuple[float, ...]) -> tuple[float, ...]:
    """Three numbers, of RGB; standard deviations above 0."""
    value = document.get(key)
    if value is None:
        return default
    least = 0 if key.endswith("std") else -math.inf
    numbers = isinstance(value, list | tuple) and all(_is_number(x) and x > least for x in value)
    if not numbers or len(value) != 3:
        raise _Wrong(key, value, "three numbers, of RGB" + (", above 0" if least == 0 else ""))
    return tuple(map(float, value))


def side(key: str, value: Any) -> int:
    """A number of pixels."""
    if type(value) is not int or not 1 <= value <= MAX_SIDE:
        raise _Wrong(key, value, f"pixels, from 1 to {MAX_SIDE:,}")
    return value


def sides(key: str, value: Any) -> tuple[int, int]:
    """(height, width) of one number, a list of two, or an object with both."""
    if isinstance(value, Mapping):
        value = [value.get("height"), value.get("width")]
    elif not isinstance(value, list | tuple):
        value = [value, value]
    if len(value) != 2:
        raise _Wrong(key, value, "height and width in pixels")
    return side(key, value[0]), side(key, value[1])


def short(value: Any) -> str:
    """A value as messages show it."""
    return repr(value)[:100]


def preprocess(
    document: Document,
    prefix: str,
    image_size: tuple[int, int],
    steps: tuple[tuple[int, int] | int | None, tuple[int, int] | None, str],
    *,
    mean_and_std: tuple[tuple[float, ...], tuple[float, ...]],
    **fields: Any,
) -> models.Preprocess:
    """Preparation of images by Pillow, which PyTorch's projects share.

    Args:
      prefix: prefix of "mean" and "std" in `document`.
      steps: resize, crop and interpolation.
      mean_and_std: the defaults.
      fields: further ones of models.Preprocess.
    """
    resize, crop, interpolation = steps
    return models.Preprocess(
        image_size,
        resize,
        crop,
        channels(document, f"{prefix}mean", mean_and_std[0]),
        channels(document, f"{prefix}std", mean_and_std[1]),
        interpolation,
        longer="down" if isinstance(resize, int) else "nearest",
        **fields,
    )


class _Wrong(UserError):
    def __init__(self, key: str, value: Any, wanted: str):
        super().__init__(f"{key}={short(value)}; it must be {wanted}.")


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)
