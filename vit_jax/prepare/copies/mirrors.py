"""Near pairs of looks, and near pairs of a look and a mirrored look, in one search.

Mirrored looks take part as if they were further images; a pair of one of them and a look is a pair
of images of which one is near the mirror image of the other.
"""

from typing import NamedTuple

import numpy as np

from vit_jax.prepare.copies.near_pairs import Pairs, Tell, near_pairs, packed_pairs, unpacked


class NearAndMirrored(NamedTuple):
    """Pairs of places of looks.

    Attributes:
      near: looks that are near each other.
      mirrored: looks that are near each other only when one is mirrored.
    """

    near: Pairs
    mirrored: Pairs


def search(
    looks: np.ndarray, mirrors: np.ndarray, known: np.ndarray, bits: int, tell: Tell
) -> NearAndMirrored:
    """Pairs that differ in up to `bits` bits.

    Args:
      looks: uint64 [n], distinct and rising.
      mirrors: uint64 [n], of the same images mirrored.
      known: bool [n], whether the mirrored look is known.
    """
    values = np.sort(np.concatenate([looks, mirrors[known]]))
    twice = values[1:] == values[:-1]
    both = values[1:][twice]  # 0 bits apart; looks are distinct, so one of the two is mirrored
    values = values[np.concatenate([np.ones(min(len(values), 1), bool), ~twice])]
    pairs = near_pairs(values, bits, tell)
    first, second = values[pairs.first], values[pairs.second]
    crowded = np.flatnonzero(np.isin(looks, values[pairs.crowded]))
    one, other = _places(looks, first), _places(looks, second)
    there = (one >= 0) & (other >= 0)
    near = Pairs(*unpacked(packed_pairs(one[there], other[there])), crowded)
    # The images that a matched mirrored look belongs to, possibly several.
    owners = np.flatnonzero(known & np.isin(mirrors, np.concatenate([first, second, both])))
    owners = owners[np.argsort(mirrors[owners], kind="stable")]
    sides = [
        _of_owners(look, mirrored, looks, mirrors, owners)
        for look, mirrored in ((first, second), (second, first), (both, both))
    ]
    one, other = (np.concatenate(side) for side in zip(*sides, strict=True))
    differ = one != other
    packed = np.setdiff1d(packed_pairs(one[differ], other[differ]), packed_pairs(*near[:2]))
    return NearAndMirrored(near, Pairs(*unpacked(packed), crowded))


def _places(looks: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Place of each value among the looks, or -1."""
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
    """Places of these looks and of looks whose mirrored looks are these values, as pairs."""
    place = _places(looks, look)
    sides = [np.searchsorted(mirrors[owners], mirrored, side) for side in ("left", "right")]
    count = np.where(place >= 0, sides[1] - sides[0], 0)
    start = np.repeat(sides[0] - (np.cumsum(count) - count), count)
    return np.repeat(place, count), owners[start + np.arange(count.sum())]
