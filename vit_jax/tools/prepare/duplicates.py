"""Copies of images: with the same bytes, or with nearly the same look.

Also between the images and evaluation sets, which a model must not have been trained on. Looks are
perceptual hashes (check_image.py), the same if they differ in few bits; images without one are
compared by bytes alone. Mirrored copies have the look of the other one's mirror image.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from vit_jax.tools.prepare import near_pairs
from vit_jax.tools.prepare.near_pairs import Pairs, Tell

NEAR_BITS = 4  # docs/data_right.md has the measurement


class EvaluationSet(NamedTuple):
    """Hashes of a set that models are evaluated on."""

    name: str
    hashes: pa.Table  # with the columns `sha256` and `look` of catalogue.SCHEMA


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
    tell: Tell = lambda done, total: None,
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
    pairs, turned = near_pairs.search(distinct, *_mirrors(table, order, distinct), bits, tell)
    copies = Duplicates(not_compared=len(pairs.crowded))
    place = np.where(seen, np.searchsorted(distinct, looks), len(distinct))
    for one, (values, ok) in zip(evaluations, known, strict=True):
        rows = order if in_training is None else order[in_training[order]]
        here, there = _digests(table)[rows], _digests(one.hashes)
        their_place = np.where(ok, np.searchsorted(distinct, values), len(distinct))
        same, near = _is_in(here, there), _near(their_place, len(distinct), pairs)[place[rows]]
        also = _is_in(there, here) | _near(place[rows], len(distinct), pairs)[their_place]
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
    copies.same = _same(_digests(table), order)
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
    """Row -> its keeper, without pairs that are in `same`."""
    keeper = _keepers(rows, place[rows], looks, pairs)
    differing = np.flatnonzero(keeper != rows)
    pairs_of_rows = zip(rows[differing].tolist(), keeper[differing].tolist(), strict=True)
    return {row: stays for row, stays in pairs_of_rows if same.get(row) != stays}


def _mirrors(
    table: pa.Table, order: np.ndarray, distinct: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Mirrored look of the first image of each distinct look: (uint64 [n], bool [n] if known)."""
    there = np.logical_and(table["mirrored"].is_valid().to_numpy(), _looks(table)[1])
    rows = order[there[order]][::-1]  # the first of several is written last
    mirrored, known = np.zeros(len(distinct), np.uint64), np.zeros(len(distinct), bool)
    place = np.searchsorted(distinct, _looks(table)[0][rows])
    mirrored[place] = table["mirrored"].fill_null(0).to_numpy()[rows]
    known[place] = True
    return mirrored, known


def _near(places: np.ndarray, looks: int, pairs: Pairs) -> np.ndarray:
    """bool [looks + 1], whether one of `places` is the same or near; the last one is no look."""
    there = np.zeros(looks + 1, bool)
    there[places] = True
    there[looks] = False
    near = there.copy()
    near[pairs.first[there[pairs.second]]] = True
    near[pairs.second[there[pairs.first]]] = True
    return near


def _same(digests: np.ndarray, order: np.ndarray) -> dict[int, int]:
    """Row -> the first row with the same digest."""
    halves = digests[order]
    by_digest = np.lexsort((np.arange(len(order)), halves[:, 1], halves[:, 0]))
    same = (halves[by_digest[1:]] == halves[by_digest[:-1]]).all(axis=1)
    first: dict[int, int] = {}
    for place in (np.flatnonzero(same) + 1).tolist():
        before, row = int(order[by_digest[place - 1]]), int(order[by_digest[place]])
        first[row] = first.get(before, before)
    return first


def _keepers(rows: np.ndarray, places: np.ndarray, looks: int, pairs: Pairs) -> np.ndarray:
    """The keeper of each row, whose look is at `places`: the row that stays for it, maybe itself.

    In the order of rows a look stays unless it is near one that stays. So every dropped row is near
    a kept one, and chains whose ends are not alike are not dropped as a whole.
    """
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
    return rows[rank[stays[places]]]


def _digests(table: pa.Table) -> np.ndarray:
    """uint64 [n, 4], the SHA-256 of each row."""
    column = table["sha256"].combine_chunks()
    if isinstance(column, pa.ChunkedArray):  # of no chunk
        column = pa.concat_arrays([*column.chunks, pa.array([], column.type)])
    start = 32 * column.offset
    data = np.frombuffer(column.buffers()[1] or b"", np.uint8)[start : start + 32 * len(column)]
    return data.view(np.uint64).reshape(-1, 4)


def _looks(table: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """(looks, whether a row has one), uint64 and bool [n]."""
    column = table["look"]
    return column.fill_null(0).to_numpy(), column.is_valid().to_numpy()


def _is_in(digests: np.ndarray, others: np.ndarray) -> np.ndarray:
    """bool [n], whether a row of `digests` is among the rows of `others`."""
    candidates = np.flatnonzero(np.isin(digests[:, 0], others[:, 0]))
    known = set(map(bytes, others))
    is_in = np.zeros(len(digests), bool)
    is_in[candidates] = [bytes(digests[at]) in known for at in candidates]
    return is_in
