"""What JSON files beside the arrays say, of the type that it must have; UserError for another."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from vit_jax.core.errors import UserError, nearest

MAX_SIDE = 32_768  # pixels
Document = Mapping[str, Any]


def section(document: Document | None, key: str) -> Document:
    """A JSON object inside; empty where there is none."""
    found = (document or {}).get(key)
    if not found:
        return {}
    if not isinstance(found, Mapping):
        raise _Wrong(key, found, "a JSON object")
    return found


def word(document: Document, key: str, default: str, choices: Collection[str]) -> str:
    """One of `choices`."""
    found = document.get(key) or default
    if not isinstance(found, str) or found not in choices:
        raise UserError(f"config.json: {key}={short(found)}. {nearest(str(found), choices)}")
    return found


def flag(document: Document, key: str, default: bool) -> bool:
    """True or false."""
    found = document.get(key)
    if found is None:
        return default
    if not isinstance(found, bool):
        raise _Wrong(key, found, "true or false")
    return found


def positive(document: Document, key: str, default: float) -> float:
    """A finite number above 0."""
    found = document.get(key)
    if found is None:
        return default
    if not _is_number(found) or found <= 0:
        raise _Wrong(key, found, "a number above 0")
    return float(found)


def channels(document: Document, key: str, default: tuple[float, ...]) -> tuple[float, ...]:
    """Three numbers, of RGB; standard deviations above 0."""
    found = document.get(key)
    if found is None:
        return default
    least = 0 if key.endswith("std") else -math.inf
    numbers = isinstance(found, list | tuple) and all(_is_number(x) and x > least for x in found)
    if not numbers or len(found) != 3:
        raise _Wrong(key, found, "three numbers, of RGB" + (", above 0" if least == 0 else ""))
    return tuple(map(float, found))


def side(key: str, found: Any) -> int:
    """A number of pixels."""
    if type(found) is not int or not 1 <= found <= MAX_SIDE:
        raise _Wrong(key, found, f"pixels, from 1 to {MAX_SIDE:,}")
    return found


def sides(key: str, found: Any) -> tuple[int, int]:
    """(height, width) of one number, a list of two, or an object with both."""
    if isinstance(found, Mapping):
        found = [found.get("height"), found.get("width")]
    elif not isinstance(found, list | tuple):
        found = [found, found]
    if len(found) != 2:
        raise _Wrong(key, found, "height and width in pixels")
    return side(key, found[0]), side(key, found[1])


def short(found: Any) -> str:
    """For a message."""
    return repr(found)[:100]


class _Wrong(UserError):
    def __init__(self, key: str, found: Any, wanted: str):
        super().__init__(f"{key}={short(found)}; it must be {wanted}.")


def _is_number(found: Any) -> bool:
    return type(found) in (int, float) and math.isfinite(found)
