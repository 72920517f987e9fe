"""Copies of images: with the same bytes, or with nearly the same look.

Also between the images and evaluation sets, which a model must not have been trained on. Looks are
perceptual hashes (faults.py), the same if they differ in few bits; images without one are compared
by bytes alone. Mirrored copies have the look of the other one's mirror image.

Pairs of looks that differ in few bits are found without comparing all with all. The 64 bits are cut
into `bits + k` blocks. Two hashes that differ in at most `bits` bits agree in at least k blocks; so
they fall into one group when hashes are sorted by the right k of them, and hashes are compared
within groups only. Every choice of k blocks is one round.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

NEAR_BITS = 4  # docs/data_right.md has the measurement
# A hash is compared with at most so many behind it in its group. Groups of random hashes are far
# smaller; comparing all in a crowd of similar hashes would take quadratic time.
MOST_COMPARISONS = 512
MOST_BITS = 8  # more would take thousands of rounds, and match unrelated images
_SORT = 30  # cost of sorting a hash, in comparisons of two
_COMPARED_AT_ONCE = 1 << 17  # as many hashes as fit into a core's cache

Progress = Callable[[int, int], None]  # called with the work that is done, and all work


class EvaluationSet(NamedTuple):
    name: str
    hashes: pa.Table  # with the columns `sha256` and `look` of collection.SCHEMA


@dataclasses.dataclass
class Duplicates:
    """Rows of the catalogue that are copies, and their originals."""

    # Row -> the first row with the same bytes; an earlier row with the same look but other bytes,
    # itself not in `near` or `same`; and one that looks the same only when one of the two is
    # mirrored left to right, itself not in `mirrored`.
    same: dict[int, int] = dataclasses.field(default_factory=dict)
    near: dict[int, int] = dataclasses.field(default_factory=dict)
    mirrored: dict[int, int] = dataclasses.field(default_factory=dict)
    # Row -> the name of the evaluation set that contains it.
    evaluated: dict[int, str] = dataclasses.field(default_factory=dict)
    by_look: int = 0  # number of `evaluated` rows that have other bytes there
    # Evaluation set -> number of rows, not in `evaluated`, that are mirrored copies of its images,
    # and of its images that have a copy among the rows.
    mirrored_in: dict[str, int] = dataclasses.field(default_factory=dict)
    matched: dict[str, int] = dataclasses.field(default_factory=dict)
    not_compared: int = 0  # looks that resemble so many others that not all were compared


def find(
    table: pa.Table,
    order: np.ndarray,
    bits: int = NEAR_BITS,
    evaluations: Sequence[EvaluationSet] = (),
    in_training: np.ndarray | None = None,
    *,
    without_near: bool = False,
    without_mirrored: bool = False,
    progress: Progress = lambda done, total: None,
) -> Duplicates:
    """Compares the rows `order` of a catalogue with each other and with evaluation sets.

    The first of several copies is the original. Looks that differ in at most `bits` bits are the
    same. `in_training`, bool for each row of the table: it must not be in an evaluation set; None:
    all. `without_near`: near copies are left out, so mirrored ones are searched among the others.
    `without_mirrored`: mirrored copies of images of evaluation sets count as in these.
    """
    looks, seen = _looks(table)
    known = [_looks(one.hashes) for one in evaluations]
    distinct = np.unique(np.concatenate([looks[order][seen[order]], *(v[ok] for v, ok in known)]))
    place = np.where(seen, np.searchsorted(distinct, looks), len(distinct))
    # Mirrored look of the first image of each distinct look: the first of several is written last.
    with_mirror = order[(seen & table["mirrored"].is_valid().to_numpy())[order]][::-1]
    mirrors, has_mirror = np.zeros(len(distinct), np.uint64), np.zeros(len(distinct), bool)
    mirrors[place[with_mirror]] = table["mirrored"].fill_null(0).to_numpy()[with_mirror]
    has_mirror[place[with_mirror]] = True
    pairs, turned = search(distinct, mirrors, has_mirror, bits, progress)
    digests = table["sha256"]
    copies = Duplicates(not_compared=len(pairs.crowded))
    for one, (values, ok) in zip(evaluations, known, strict=True):
        rows = order if in_training is None else order[in_training[order]]
        here, there = digests.take(pa.array(rows)), one.hashes["sha256"].cast(digests.type)
        their_place = np.where(ok, np.searchsorted(distinct, values), len(distinct))
        same = pc.is_in(here, value_set=there).to_numpy()
        near = _near(their_place, len(distinct), pairs)[place[rows]]
        also = pc.is_in(there, value_set=here).to_numpy()
        also |= _near(place[rows], len(distinct), pairs)[their_place]
        mirrored = _near(their_place, len(distinct), turned)[place[rows]]
        if without_mirrored:
            near |= mirrored
            also |= _near(place[rows], len(distinct), turned)[their_place]
        elif number := int((mirrored & ~near & ~same).sum()):
            copies.mirrored_in[one.name] = number
        copies.matched[one.name] = int(also.sum())
        copies.by_look += int((near & ~same).sum())
        copies.evaluated |= dict.fromkeys(rows[same | near].tolist(), one.name)
        order = order[~np.isin(order, rows[same | near])]
    copies.same = _same(digests, order)
    visible = order[seen[order]]
    copies.near = _copies(visible, place, len(distinct), pairs, copies.same)
    if without_near:
        visible = visible[~np.isin(visible, np.fromiter(copies.near, np.int64, len(copies.near)))]
    copies.mirrored = _copies(visible, place, len(distinct), turned, copies.same)
    # Images of the same look are near, not mirrored.
    copies.mirrored = {row: of for row, of in copies.mirrored.items() if place[row] != place[of]}
    return copies


def _copies(
    rows: np.ndarray, place: np.ndarray, looks: int, pairs: Pairs, same: dict[int, int]
) -> dict[int, int]:
    """Row -> the row that stays for it, without pairs that are in `same`; `place` is of its look.

    In the order of rows a look stays unless it is near one that stays: every dropped row is near a
    kept one.
    """
    places = place[rows]
    rank = np.full(looks, len(rows))  # of a look's first row
    np.minimum.at(rank, places, np.arange(len(rows)))
    there = (rank[pairs.first] < len(rows)) & (rank[pairs.second] < len(rows))
    first, second = pairs.first[there], pairs.second[there]
    swap = rank[first] > rank[second]
    earlier, later = np.where(swap, second, first), np.where(swap, first, second)
    stays = np.arange(looks)
    for at in np.lexsort((rank[earlier], rank[later])).tolist():
        one, other = earlier[at], later[at]
        if stays[other] == other and stays[one] == one:
            stays[other] = one
    keeper = rows[rank[stays[places]]]
    differing = np.flatnonzero(keeper != rows)
    pairs_of_rows = zip(rows[differing].tolist(), keeper[differing].tolist(), strict=True)
    return {row: stays for row, stays in pairs_of_rows if same.get(row) != stays}


def _near(places: np.ndarray, looks: int, pairs: Pairs) -> np.ndarray:
    """bool [looks + 1], whether one of `places` is the same or near; the last one is no look."""
    there = np.zeros(looks + 1, bool)
    there[places] = True
    there[looks] = False
    near = there.copy()
    near[pairs.first[there[pairs.second]]] = True
    near[pairs.second[there[pairs.first]]] = True
    return near


def _same(digests: pa.ChunkedArray, order: np.ndarray) -> dict[int, int]:
    in_order = digests.take(pa.array(order))
    first = order[pc.index_in(in_order, value_set=in_order).to_numpy()]
    copies = np.flatnonzero(first != order)
    return dict(zip(order[copies].tolist(), first[copies].tolist(), strict=True))


def _looks(table: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    column = table["look"]
    return column.fill_null(0).to_numpy(), column.is_valid().to_numpy()


class Pairs(NamedTuple):
    first: np.ndarray  # int64 [n], places of hashes in the input; sorted
    second: np.ndarray  # int64 [n], > first
    crowded: np.ndarray  # int64 [m], in a group so crowded that pairs may be missing; sorted


def _packed(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """uint64, each pair of places once, rising."""
    low, high = np.minimum(one, other), np.maximum(one, other)
    return np.unique(low.astype(np.uint64) << 32 | high.astype(np.uint64))


def _unpacked(packed: np.ndarray, crowded: np.ndarray) -> Pairs:
    low, high = packed >> 32, packed & (2**32 - 1)
    return Pairs(low.astype(np.int64), high.astype(np.int64), crowded)


def near_pairs(
    hashes: np.ndarray, bits: int, progress: Progress = lambda done, total: None
) -> Pairs:
    """The pairs that differ in 1 to `bits` bits, of at most 2**32 hashes, distinct and rising."""
    masks = list(_masks(bits, len(hashes))) if bits else []
    packed, crowds = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
    progress(0, len(masks))
    for done, mask in enumerate(masks, 1):
        # Stable, so that the same pairs of a crowd are compared on every machine.
        order = np.argsort(hashes & mask, kind="stable")
        crowded: list[np.ndarray] = []
        for one, other in _close(hashes[order], mask, bits, crowded):
            packed.append(_packed(order[one], order[other]))
        packed = [np.unique(np.concatenate(packed))]
        crowds += [order[places] for places in crowded]
        progress(done, len(masks))
    return _unpacked(packed[0], np.unique(np.concatenate(crowds)))


def _close(
    values: np.ndarray, mask: np.uint64, bits: int, crowded: list[np.ndarray]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Places of near pairs equal under the mask that sorts `values`; adds to `crowded` the rest."""
    for start in range(0, len(values), _COMPARED_AT_ONCE):
        some = values[start : start + _COMPARED_AT_ONCE + MOST_COMPARISONS]
        places = np.flatnonzero((some[1:] ^ some[:-1]) & mask == 0)
        places = places[: np.searchsorted(places, _COMPARED_AT_ONCE)]
        distance = 1
        while len(places):
            if distance > MOST_COMPARISONS:
                crowded.append(start + places)
                break
            differing = some[places] ^ some[places + distance]
            close = start + places[np.bitwise_count(differing) <= bits]
            if len(close):
                yield close, close + distance
            distance += 1
            places = places[: np.searchsorted(places, len(some) - distance)]
            places = places[(some[places] ^ some[places + distance]) & mask == 0]


def _masks(bits: int, hashes: int) -> Iterator[np.uint64]:
    agreeing = min(range(1, 9), key=lambda k: _work(bits, k, hashes))
    ends = [64 * i // (bits + agreeing) for i in range(bits + agreeing + 1)]
    blocks = [(1 << end) - (1 << start) for start, end in itertools.pairwise(ends)]
    return (np.uint64(sum(chosen)) for chosen in itertools.combinations(blocks, agreeing))


def _work(bits: int, agreeing: int, hashes: int) -> float:
    """Cost of all rounds: more agreeing blocks mean fewer comparisons, but more sorts."""
    blocks = bits + agreeing
    same = 2.0 ** -(64 / blocks * agreeing)  # probability that two random hashes share a group
    return math.comb(blocks, agreeing) * hashes * (_SORT + hashes * same / 2)


def search(
    looks: np.ndarray, mirrors: np.ndarray, known: np.ndarray, bits: int, progress: Progress
) -> tuple[Pairs, Pairs]:
    """(near pairs of looks, those that are near only when one is mirrored): up to `bits` differ.

    `looks` are uint64 [n], distinct and rising, `mirrors` those of the same images mirrored, where
    they are `known`. Mirrored looks take part as if they were further images.
    """
    values, counts = np.unique(np.concatenate([looks, mirrors[known]]), return_counts=True)
    both = values[counts > 1]  # 0 bits apart; looks are distinct, so one of the two is mirrored
    pairs = near_pairs(values, bits, progress)
    first, second = values[pairs.first], values[pairs.second]
    crowded = np.flatnonzero(np.isin(looks, values[pairs.crowded]))
    one, other = _places(looks, first), _places(looks, second)
    there = (one >= 0) & (other >= 0)
    near = _packed(one[there], other[there])
    # The images that a matched mirrored look belongs to, possibly several.
    owners = np.flatnonzero(known & np.isin(mirrors, np.concatenate([first, second, both])))
    owners = owners[np.argsort(mirrors[owners], kind="stable")]
    turned = [np.zeros(0, np.uint64)]
    for look, mirrored in ((first, second), (second, first), (both, both)):
        place = _places(looks, look)
        start, end = (np.searchsorted(mirrors[owners], mirrored, s) for s in ("left", "right"))
        count = np.where(place >= 0, end - start, 0)
        offset = np.repeat(start - (np.cumsum(count) - count), count)
        one, other = np.repeat(place, count), owners[offset + np.arange(count.sum())]
        turned.append(_packed(one[one != other], other[one != other]))
    packed = np.setdiff1d(np.concatenate(turned), near)
    return _unpacked(near, crowded), _unpacked(packed, crowded)


def _places(looks: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Place of each value among the looks, or -1."""
    if not len(looks):
        return np.full(len(values), -1)
    place = np.minimum(np.searchsorted(looks, values), len(looks) - 1)
    return np.where(looks[place] == values, place, -1)
