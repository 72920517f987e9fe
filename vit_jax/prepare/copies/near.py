"""All pairs of 64-bit hashes that differ in few bits, without comparing all with all.

The 64 bits are cut into `bits + k` blocks. Two hashes that differ in at most `bits` bits agree in
at least k blocks; so they stand in one group when hashes are sorted by the right k of them, and
only within groups hashes are compared. Every choice of k blocks is one round.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

# In a group a hash is compared with so many that stand behind it. Groups of random hashes are far
# smaller; hashes that crowd in one place would take time that grows with the square.
MOST_COMPARISONS = 512
MOST_BITS = 8  # with more there are thousands of rounds, and unrelated images are found
_SORT = 30  # what sorting a hash takes, in comparisons of two
# Hashes whose bits are moved, and that are compared: as many as stay in a core's cache.
_AT_ONCE, _COMPARED_AT_ONCE = 1 << 15, 1 << 17

Progress = Callable[[int, int], None]  # how much is done, of how much


class Pairs(NamedTuple):
    """What was found.

    Attributes:
      first, second: int64 [n], places of two hashes in what was given, first < second; sorted.
      crowded: int64 [m], places of hashes in a group so crowded that pairs may be missing; sorted.
    """

    first: np.ndarray
    second: np.ndarray
    crowded: np.ndarray


def near_pairs(hashes: np.ndarray, bits: int, tell: Progress = lambda done, of: None) -> Pairs:
    """The pairs that differ in 1 to `bits` bits, of at most 2**32 hashes.

    Args:
      hashes: uint64 [n], distinct and rising.
      tell: is called before the first round, and after each.
    """
    rounds = list(_rounds(bits, len(hashes))) if bits else []
    found, crowds = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
    tell(0, len(rounds))
    for done, moves in enumerate(rounds):
        # Sorted by value, whose highest bits are those of the round: nothing else is kept in step.
        moved = _moved(hashes, moves.to)
        moved.sort()
        where = lambda values, back=moves.back: np.searchsorted(hashes, _moved(values, back))
        crowded: list[np.ndarray] = []
        for one, other in _close(moved, moves.bits, bits, crowded):
            low, high = where(one), where(other)
            low, high = np.minimum(low, high), np.maximum(low, high)
            found.append(low.astype(np.uint64) << np.uint64(32) | high.astype(np.uint64))
        found = [np.unique(np.concatenate(found))]
        crowds += [where(some) for some in crowded]
        tell(done + 1, len(rounds))
    (packed,) = found
    first = (packed >> np.uint64(32)).astype(np.int64)
    second = (packed & np.uint64(2**32 - 1)).astype(np.int64)
    return Pairs(first, second, np.unique(np.concatenate(crowds)))


def _close(
    values: np.ndarray, agreeing: int, bits: int, crowded: list[np.ndarray]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Pairs of rising values that agree in the highest bits, and differ in few of the others.

    Appends to `crowded` values that were not compared with all.
    """
    less = np.uint64(2 ** (64 - agreeing))
    for start in range(0, len(values), _COMPARED_AT_ONCE):
        some = values[start : start + _COMPARED_AT_ONCE + MOST_COMPARISONS]
        places = np.flatnonzero(some[1:] ^ some[:-1] < less)
        places = places[: np.searchsorted(places, _COMPARED_AT_ONCE)]
        distance = 1
        while len(places):
            if distance > MOST_COMPARISONS:
                crowded.append(some[places])
                break
            differing = some[places] ^ some[places + distance]
            close = places[np.bitwise_count(differing) <= bits]
            if len(close):
                yield some[close], some[close + distance]
            distance += 1
            places = places[: np.searchsorted(places, len(some) - distance)]
            places = places[some[places] ^ some[places + distance] < less]


class _Moves(NamedTuple):
    """A round: the bits to sort by, which are the highest when `to` has been done.

    Attributes:
      bits: how many.
      to, back: (mask, bits to the left) of bits that are moved together.
    """

    bits: int
    to: list[tuple[int, int]]
    back: list[tuple[int, int]]


def _moved(hashes: np.ndarray, moves: Sequence[tuple[int, int]]) -> np.ndarray:
    moved = np.zeros_like(hashes)
    for start in range(0, len(hashes), _AT_ONCE):
        some, out = hashes[start : start + _AT_ONCE], moved[start : start + _AT_ONCE]
        for mask, left in moves:
            part = some & np.uint64(mask)
            out |= part << np.uint64(left) if left >= 0 else part >> np.uint64(-left)
    return moved


def _rounds(bits: int, hashes: int) -> Iterator[_Moves]:
    agreeing = min(range(1, 9), key=lambda k: _work(bits, k, hashes))
    ends = [64 * i // (bits + agreeing) for i in range(bits + agreeing + 1)]
    blocks = list(itertools.pairwise(ends))
    for chosen in itertools.combinations(blocks, agreeing):
        others = [block for block in blocks if block not in chosen]
        to: dict[int, int] = {}  # to the left -> mask
        place = 0
        for start, end in (*others, *chosen):
            mask = (1 << end) - (1 << start)
            to[place - start] = to.get(place - start, 0) | mask
            place += end - start
        shift = lambda mask, left: mask << left if left >= 0 else mask >> -left
        yield _Moves(
            sum(end - start for start, end in chosen),
            [(mask, left) for left, mask in to.items()],
            [(shift(mask, left), -left) for left, mask in to.items()],
        )


def _work(bits: int, agreeing: int, hashes: int) -> float:
    """Of all rounds: more blocks that agree are fewer comparisons, but more sorts."""
    blocks = bits + agreeing
    same = 2.0 ** -(64 / blocks * agreeing)  # of two random hashes: in one group
    return math.comb(blocks, agreeing) * hashes * (_SORT + hashes * same / 2)
