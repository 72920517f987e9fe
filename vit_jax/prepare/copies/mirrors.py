"""Which looks are near each other, and which are near what another is in a mirror: one search.

Mirrored looks are searched for as if they were further images; a pair of one of them and a look is
a pair of images of which one is, mirrored, near the other.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from vit_jax.prepare.copies.near import Pairs, Progress, near_pairs


class Found(NamedTuple):
    """Places of looks.

    Attributes:
      near: those that are near each other.
      mirrored: those that are near each other when one is mirrored, but not as they are.
    """

    near: Pairs
    mirrored: Pairs


def search(
    looks: np.ndarray, mirrors: np.ndarray, known: np.ndarray, bits: int, tell: Progress
) -> Found:
    """Pairs that differ in up to `bits` bits.

    Args:
      looks: uint64 [n], distinct and rising.
      mirrors: uint64 [n], of the same images mirrored.
      known: bool [n], whether there is such a one.
    """
    values = np.sort(np.concatenate([looks, mirrors[known]]))
    twice = values[1:] == values[:-1]
    both = values[1:][twice]  # of 0 bits: looks are distinct, so one of two is mirrored
    values = values[np.concatenate([np.ones(min(len(values), 1), bool), ~twice])]
    pairs = near_pairs(values, bits, tell)
    first, second = values[pairs.first], values[pairs.second]
    crowded = np.flatnonzero(np.isin(looks, values[pairs.crowded]))
    one, other = _places(looks, first), _places(looks, second)
    there = (one >= 0) & (other >= 0)
    near = Pairs(*_rising(one[there], other[there]), crowded)
    # What each mirrored look that was found is of: maybe of several.
    owners = np.flatnonzero(known & np.isin(mirrors, np.concatenate([first, second, both])))
    owners = owners[np.argsort(mirrors[owners], kind="stable")]
    found = [
        _of_owners(look, mirrored, looks, mirrors, owners)
        for look, mirrored in ((first, second), (second, first), (both, both))
    ]
    one, other = (np.concatenate(side) for side in zip(*found, strict=True))
    packed = np.setdiff1d(_packed(one[one != other], other[one != other]), _packed(*near[:2]))
    return Found(near, Pairs(*_unpacked(packed), crowded))


def _places(looks: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Of each value among the looks, or -1."""
    if not len(looks):
        return np.full(len(values), -1)
    place = np.minimum(np.searchsorted(looks, values), len(looks) - 1)
    return np.where(looks[place] == values, place, -1)


def _of_owners(
    look: np.ndarray,
    mirrored: np.ndarray,
    looks: np.ndarray,
    mirrors: np.ndarray,
    owners: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Places of these looks, and of those that are these values in a mirror, where there are."""
    place = _places(looks, look)
    sides = [np.searchsorted(mirrors[owners], mirrored, side) for side in ("left", "right")]
    count = np.where(place >= 0, sides[1] - sides[0], 0)
    start = np.repeat(sides[0] - (np.cumsum(count) - count), count)
    return np.repeat(place, count), owners[start + np.arange(count.sum())]


def _packed(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """uint64, each pair once, rising."""
    low, high = np.minimum(one, other), np.maximum(one, other)
    return np.unique(low.astype(np.uint64) << np.uint64(32) | high.astype(np.uint64))


def _unpacked(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    low = packed & np.uint64(2**32 - 1)
    return (packed >> np.uint64(32)).astype(np.int64), low.astype(np.int64)


def _rising(one: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return _unpacked(_packed(one, other))
