"""Pairs of images of which one is a copy of the other, those first that do harm.

Of two classes: at most one label is right, or both are. Of two splits: what is evaluated on was
trained on. Other copies only count more than once.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from vit_jax.prepare.arrangement import Arrangement

KINDS = {"same": "same_bytes", "near": "near", "mirrored": "mirrored"}  # of Duplicates, as told
MOST_LABELS = 10  # of an image, in pairs of classes
_AT_ONCE = 10_000


class CopyPairs(NamedTuple):
    """Rows of the catalogue, in the order in which they are told.

    Attributes:
      kind: places in KINDS, int8 [n].
      first, copy: int64 [n].
      other_class, other_split: bool [n].
      split: place in `splits` of each row of the catalogue, or -1, int64 [rows].
      splits: their names.
    """

    kind: np.ndarray
    first: np.ndarray
    copy: np.ndarray
    other_class: np.ndarray
    other_split: np.ndarray
    split: np.ndarray
    splits: Sequence[str]


def copy_pairs(table: pa.Table, arranged: Arrangement) -> CopyPairs:
    """All of them: of other classes, of other splits, the rest; in each the order of the set."""
    found = [getattr(arranged.copies, kind) for kind in KINDS]
    sizes = [len(of) for of in found]
    kind = np.repeat(np.arange(len(KINDS), dtype=np.int8), sizes)
    copy = np.fromiter(itertools.chain(*found), np.int64, sum(sizes))
    first = np.fromiter(itertools.chain(*(of.values() for of in found)), np.int64, sum(sizes))
    split, splits = _splits(table, arranged)
    other_split = (split[copy] != split[first]) & (split[copy] >= 0) & (split[first] >= 0)
    other_class = np.zeros(len(copy), bool)
    for start in range(0, len(copy), _AT_ONCE):
        some = slice(start, start + _AT_ONCE)
        pairs = zip(_labels(table, copy[some]), _labels(table, first[some]), strict=True)
        other_class[some] = [set(one) != set(other) for one, other in pairs]
    rank = _rank(other_class, other_split)
    told = np.lexsort((kind, table["order"].to_numpy()[copy], rank))
    return CopyPairs(
        kind[told], first[told], copy[told], other_class[told], other_split[told], split, splits
    )


def _rank(other_class: np.ndarray, other_split: np.ndarray) -> np.ndarray:
    return np.where(other_class, 0, np.where(other_split, 1, 2))


def _splits(table: pa.Table, arranged: Arrangement) -> tuple[np.ndarray, list[str]]:
    """Of each row the split it is in, or that the collection has put it in; -1: neither."""
    own = table["split"].cast(pa.string()).combine_chunks().dictionary_encode()
    names = own.dictionary.to_pylist()
    found = own.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    for name, rows in arranged.splits.items():
        names += [name] if name not in names else []
        found[rows] = names.index(name)
    return found, names


def _labels(table: pa.Table, rows: np.ndarray) -> list[list[int]]:
    return table["labels"].take(pa.array(rows)).to_pylist()


def told(
    table: pa.Table, arranged: Arrangement, names: Sequence[str], pairs: CopyPairs
) -> Iterator[dict[str, Any]]:
    """An object for each pair, in their order; labels as names of classes."""
    kinds = list(KINDS.values())
    looks = table["look"].fill_null(0).to_numpy()
    mirrored = table["mirrored"].fill_null(0).to_numpy()
    for start in range(0, len(pairs.copy), _AT_ONCE):
        some = slice(start, start + _AT_ONCE)
        sides = [
            table.select(["name", "labels"]).take(pa.array(rows)).to_pylist()
            for rows in (pairs.copy[some], pairs.first[some])
        ]
        for k, (one, other) in enumerate(zip(*sides, strict=True), start):
            row, of = int(pairs.copy[k]), int(pairs.first[k])
            kind = kinds[pairs.kind[k]]
            bits = _bits(kind, looks, mirrored, row, of)
            yield {
                "kind": kind,
                "name": one["name"],
                "of": other["name"],
                "classes": [names[label] for label in one["labels"]],
                "classes_of": [names[label] for label in other["labels"]],
                "split": _split(pairs, row),
                "split_of": _split(pairs, of),
                "other_class": bool(pairs.other_class[k]),
                "other_split": bool(pairs.other_split[k]),
                **({} if bits is None else {"bits": bits}),
                "left_out": arranged.left_out.get(row),
            }


def _split(pairs: CopyPairs, row: int) -> str | None:
    return pairs.splits[pairs.split[row]] if pairs.split[row] >= 0 else None


def _bits(kind: str, looks: np.ndarray, mirrored: np.ndarray, row: int, of: int) -> int | None:
    """In how many bits the looks differ, after one was mirrored; None: the bytes are the same."""
    if kind == "same_bytes":
        return None
    if kind == "near":
        return int(looks[row] ^ looks[of]).bit_count()
    return min(int(looks[a] ^ mirrored[b]).bit_count() for a, b in ((row, of), (of, row)))


def class_pairs(
    table: pa.Table, names: Sequence[str], pairs: CopyPairs, most: int
) -> dict[str, Any]:
    """Between which classes there are how many copies, the most frequent pairs first.

    Of images with several labels those count that only one of the two has, against each other, or
    against all of the other's where one has no others; of very many labels the first MOST_LABELS.
    """
    found: dict[tuple[int, int], Counter[str]] = {}
    kinds = list(KINDS.values())
    rows = np.flatnonzero(pairs.other_class)
    for start in range(0, len(rows), _AT_ONCE):
        some = rows[start : start + _AT_ONCE]
        labels = (_labels(table, side[some]) for side in (pairs.copy, pairs.first))
        for k, one, other in zip(some, *labels, strict=True):
            for pair in _of_two(set(one), set(other)):
                found.setdefault(pair, Counter())[kinds[pairs.kind[k]]] += 1
    ordered = sorted(found.items(), key=lambda item: (-item[1].total(), item[0]))
    return {
        "number": len(found),
        "most": [
            {"classes": [names[label] for label in pair], "copies": of.total(), **of}
            for pair, of in ordered[:most]
        ],
    }


def _of_two(one: set[int], other: set[int]) -> set[tuple[int, int]]:
    sides = ((sorted(a - b) or sorted(a))[:MOST_LABELS] for a, b in ((one, other), (other, one)))
    return {(min(pair), max(pair)) for pair in itertools.product(*sides) if pair[0] != pair[1]}


def to_show(pairs: CopyPairs) -> Iterator[int]:
    """Places of pairs whose pictures say something, the kinds in turn within each rank.

    The same picture twice in one class and split is none of them.
    """
    rank = _rank(pairs.other_class, pairs.other_split)
    for of_rank in range(3):
        groups = [
            np.flatnonzero((rank == of_rank) & (pairs.kind == kind)).tolist()
            for kind, name in enumerate(KINDS)
            if of_rank < 2 or name != "same"
        ]
        for turn in itertools.zip_longest(*groups):
            yield from (at for at in turn if at is not None)


def in_words(pairs: CopyPairs, at: int) -> str:
    """What a pair is: "mirrored, of another class, test and train"."""
    words = [("the same bytes", "near", "mirrored")[pairs.kind[at]]]
    words += ["of another class"] if pairs.other_class[at] else []
    if pairs.other_split[at]:
        one, other = (_split(pairs, int(side[at])) for side in (pairs.first, pairs.copy))
        words.append(f"{one} and {other}")
    return ", ".join(words)
