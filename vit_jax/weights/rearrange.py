"""The axes of one array in two formats, as words: "(H K) D" of one is "D H K" of another.

A word is an axis, a group in brackets several that lie in one, and 1 an axis of that size, which
may come and go. "3" is an axis of that size, "2W" one twice as long as W, and "W'" another one that
is as long as W.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import numpy as np

Sizes = Mapping[str, int]
_WORD = re.compile(r"(\d*)([A-Za-z]\w*)?'?")


def groups(axes: str) -> list[tuple[str, ...]]:
    """ "(H K) D" -> [("H", "K"), ("D",)]"""
    found: list[tuple[str, ...]] = []
    inside: list[str] | None = None
    for word in axes.replace("(", " ( ").replace(")", " ) ").split():
        if word == "(":
            inside = []
        elif word == ")":
            assert inside is not None, axes
            found.append(tuple(inside))
            inside = None
        elif inside is None:
            found.append((word,))
        else:
            inside.append(word)
    return found


def shape(axes: str, sizes: Sizes) -> tuple[int, ...]:
    """Of an array with these axes; a number is its own size."""
    return tuple(math.prod(_size(word, sizes) for word in group) for group in groups(axes))


def rearrange(array: np.ndarray, old: str, new: str, sizes: Sizes) -> np.ndarray:
    """An array with the axes `old` -> the same with the axes `new`; a view where possible."""
    atoms = [
        [word for group in groups(axes) for word in group if word != "1"] for axes in (old, new)
    ]
    assert sorted(atoms[0]) == sorted(atoms[1]), (old, new)
    apart = array.reshape([_size(word, sizes) for word in atoms[0]])
    return apart.transpose([atoms[0].index(word) for word in atoms[1]]).reshape(shape(new, sizes))


def is_letter(word: str) -> bool:
    """Whether it is a name of a size: "W", and not "3", "2W" or "W'"."""
    return word.isidentifier()


def _size(word: str, sizes: Sizes) -> int:
    found = _WORD.fullmatch(word)
    assert found, word
    number, letter = found.groups()
    return int(number or 1) * (sizes[letter] if letter else 1)
