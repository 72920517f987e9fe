"""All pairs of 64-bit hashes that differ in few bits, without comparing all with all.

The 64 bits are cut into `bits + k` blocks. Two hashes that differ in at most `bits` bits agree in
at least k blocks; so they fall into one group when hashes are sorted by the right k of them, and
hashes are compared within groups only. Every choice of k blocks is one round.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

# A hash is compared with at most so many behind it in its group. Groups of random hashes are far
# smaller; comparing all in a crowd of similar hashes would take quadratic time.
MOST_COMPARISONS = 512
MOST_BITS = 8  # more would take thousands of rounds, and match unrelated images
_SORT = 30  # cost of sorting a hash, in comparisons of two
# Hashes to permute, and to compare, at once: as many as fit into a core's cache.
_AT_ONCE, _COMPARED_AT_ONCE = 1 << 15, 1 << 17

Tell = Callable[[int, int], None]  # called with the work that is done, and all work


class Pairs(NamedTuple):
    """Pairs of near hashes."""

    first: np.ndarray  # int64 [n], places of hashes in the input; sorted
    second: np.ndarray  # int64 [n], > first
    crowded: np.ndarray  # int64 [m], in a group so crowded that pairs may be missing; sorted


def near_pairs(hashes: np.ndarray, bits: int, tell: Tell = lambda done, total: None) -> Pairs:
    """The pairs that differ in 1 to `bits` bits, of at most 2**32 hashes, distinct and rising."""
    rounds = list(_rounds(bits, len(hashes))) if bits else []
    packed, crowds = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
    tell(0, len(rounds))
    for done, step in enumerate(rounds):
        # Permuted so that the round's bits are the highest: sorting the values is all it takes.
        moved = _moved(hashes, step.to)
        moved.sort()
        where = lambda values, back=step.back: np.searchsorted(hashes, _moved(values, back))
        crowded: list[np.ndarray] = []
        for one, other in _close(moved, step.bits, bits, crowded):
            packed.append(packed_pairs(where(one), where(other)))
        packed = [np.unique(np.concatenate(packed))]
        crowds += [where(some) for some in crowded]
        tell(done + 1, len(rounds))
    return Pairs(*unpacked(packed[0]), np.unique(np.concatenate(crowds)))


def packed_pairs(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """uint64, each pair of places once, rising."""
    low, high = np.minimum(one, other), np.maximum(one, other)
    return np.unique(low.astype(np.uint64) << np.uint64(32) | high.astype(np.uint64))


def unpacked(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The inverse of packed_pairs: (first, second), int64."""
    second = packed & np.uint64(2**32 - 1)
    return (packed >> np.uint64(32)).astype(np.int64), second.astype(np.int64)


def _close(
    values: np.ndarray, agreeing: int, bits: int, crowded: list[np.ndarray]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Pairs of rising values that agree in the highest bits and differ in few of the others.

    Appends values that were not compared with all of their group to `crowded`.
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


class _Round(NamedTuple):
    """A permutation that makes the bits to sort by the highest."""

    bits: int  # to sort by
    to: list[tuple[int, int]]  # (mask, shift to the left) of bits moved together
    back: list[tuple[int, int]]  # the inverse


def _moved(hashes: np.ndarray, moves: Sequence[tuple[int, int]]) -> np.ndarray:
    moved = np.zeros_like(hashes)
    for start in range(0, len(hashes), _AT_ONCE):
        some, out = hashes[start : start + _AT_ONCE], moved[start : start + _AT_ONCE]
        for mask, left in moves:
            part = some & np.uint64(mask)
            out |= part << np.uint64(left) if left >= 0 else part >> np.uint64(-left)
    return moved


def _rounds(bits: int, hashes: int) -> Iterator[_Round]:
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
        yield _Round(
            sum(end - start for start, end in chosen),
            [(mask, left) for left, mask in to.items()],
            [(shift(mask, left), -left) for left, mask in to.items()],
        )


def _work(bits: int, agreeing: int, hashes: int) -> float:
    """Cost of all rounds: more agreeing blocks mean fewer comparisons, but more sorts."""
    blocks = bits + agreeing
    same = 2.0 ** -(64 / blocks * agreeing)  # probability that two random hashes share a group
    return math.comb(blocks, agreeing) * hashes * (_SORT + hashes * same / 2)


class NearAndMirrored(NamedTuple):
    """Pairs of places of looks."""

    near: Pairs
    mirrored: Pairs  # near each other only when one is mirrored


def search(
    looks: np.ndarray, mirrors: np.ndarray, known: np.ndarray, bits: int, tell: Tell
) -> NearAndMirrored:
    """Pairs of looks, and of looks and mirrored ones, that differ in up to `bits` bits.

    `looks` are uint64 [n], distinct and rising, `mirrors` those of the same images mirrored, where
    they are `known`. Mirrored looks take part as if they were further images; a pair of one of them
    and a look is a pair of images of which one is near the mirror image of the other.
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
