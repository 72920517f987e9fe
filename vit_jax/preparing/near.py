"""All pairs of 64-bit hashes that differ in few bits, without comparing all with all.

The 64 bits are cut into `bits + k` blocks. Two hashes that differ in at most `bits` bits agree in
at least k blocks; so they stand in one group when hashes are sorted by the right k of them, and
only within groups hashes are compared. Every choice of k blocks is one round.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

# In a group a hash is compared with so many that stand behind it. Groups of random hashes are far
# smaller; hashes that crowd in one place would take time that grows with the square.
MOST_COMPARISONS = 256
MOST_BITS = 8  # with more there are thousands of rounds, and unrelated images are found
_SORT = 30  # what sorting a hash takes, in comparisons of two


class Pairs(NamedTuple):
    """What was found.

    Attributes:
      first, second: int64 [n], places of two hashes in what was given, first < second; sorted.
      not_compared: how many hashes stood in a group so crowded that pairs may be missing.
    """

    first: np.ndarray
    second: np.ndarray
    not_compared: int


def near_pairs(hashes: np.ndarray, bits: int) -> Pairs:
    """The pairs that differ in 1 to `bits` bits, of at most 2**32 distinct hashes, uint64 [n]."""
    crowded = np.zeros(len(hashes), bool)
    found = [np.zeros(0, np.uint64)]
    for mask in _masks(bits, len(hashes)) if bits else ():
        keys = hashes & mask
        order = np.argsort(keys)
        keys, ordered = keys[order], hashes[order]
        for places, distance in _in_groups(keys):
            if distance > MOST_COMPARISONS:
                crowded[order[places]] = True
                break
            differing = np.bitwise_count(ordered[places] ^ ordered[places + distance])
            close = places[differing <= bits]
            one, other = order[close], order[close + distance]
            low, high = np.minimum(one, other), np.maximum(one, other)
            found.append(low.astype(np.uint64) << np.uint64(32) | high.astype(np.uint64))
        found = [np.unique(np.concatenate(found))]
    (packed,) = found
    first = (packed >> np.uint64(32)).astype(np.int64)
    return Pairs(first, (packed & np.uint64(2**32 - 1)).astype(np.int64), int(crowded.sum()))


def _in_groups(keys: np.ndarray) -> Iterator[tuple[np.ndarray, int]]:
    """(places, distance) such that sorted `keys` are the same at place and place + distance."""
    places = np.flatnonzero(keys[1:] == keys[:-1])
    distance = 1
    while len(places):
        yield places, distance
        distance += 1
        places = places[: np.searchsorted(places, len(keys) - distance)]
        places = places[keys[places] == keys[places + distance]]


def _masks(bits: int, hashes: int) -> Iterator[np.uint64]:
    """The bits to sort by, one mask for each round."""
    agreeing = min(range(1, 9), key=lambda k: _work(bits, k, hashes))
    ends = [64 * i // (bits + agreeing) for i in range(bits + agreeing + 1)]
    blocks = [(1 << end) - (1 << start) for start, end in itertools.pairwise(ends)]
    for chosen in itertools.combinations(blocks, agreeing):
        yield np.uint64(sum(chosen))


def _work(bits: int, agreeing: int, hashes: int) -> float:
    """Of all rounds: more blocks that agree are fewer comparisons, but more sorts."""
    blocks = bits + agreeing
    same = 2.0 ** -(64 / blocks * agreeing)  # of two random hashes: in one group
    return math.comb(blocks, agreeing) * hashes * (_SORT + hashes * same / 2)
