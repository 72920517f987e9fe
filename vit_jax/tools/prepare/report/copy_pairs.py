"""Pairs of an image and its copy, harmful pairs first.

Pairs of two classes: one label is wrong, or both apply. Pairs of two splits: an image is both
trained and evaluated on. Other copies only count more than once.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from vit_jax.tools.prepare.split_assignment import SplitAssignment

# Field of Duplicates -> its name in reports.
KINDS = {"same": "same_bytes", "near": "near", "mirrored": "mirrored"}
MOST_LABELS = 10  # of an image, in class_pairs
_AT_ONCE = 10_000


class CopyPairs(NamedTuple):
    """Pairs of rows of the catalogue, in the order of reports."""

    kind: np.ndarray  # int8 [n], places in KINDS
    first: np.ndarray  # int64 [n]
    copy: np.ndarray  # int64 [n]
    other_class: np.ndarray  # bool [n]
    other_split: np.ndarray  # bool [n]
    split: np.ndarray  # int64 [rows], place in `splits` of each row of the catalogue, or -1
    splits: Sequence[str]


def copy_pairs(table: pa.Table, assignment: SplitAssignment) -> CopyPairs:
    """All pairs: of two classes, of two splits, the rest; within each in the order of the set."""
    copies = [getattr(assignment.copies, kind) for kind in KINDS]
    sizes = [len(of) for of in copies]
    kind = np.repeat(np.arange(len(KINDS), dtype=np.int8), sizes)
    copy = np.fromiter(itertools.chain(*copies), np.int64, sum(sizes))
    first = np.fromiter(itertools.chain(*(of.values() for of in copies)), np.int64, sum(sizes))
    split, splits = _splits(table, assignment)
    other_split = (split[copy] != split[first]) & (split[copy] >= 0) & (split[first] >= 0)
    other_class = np.zeros(len(copy), bool)
    for start in range(0, len(copy), _AT_ONCE):
        some = slice(start, start + _AT_ONCE)
        pairs = zip(_labels(table, copy[some]), _labels(table, first[some]), strict=True)
        other_class[some] = [set(one) != set(other) for one, other in pairs]
    rank = _rank(other_class, other_split)
    order = np.lexsort((kind, table["order"].to_numpy()[copy], rank))
    kind, first, copy = kind[order], first[order], copy[order]
    return CopyPairs(kind, first, copy, other_class[order], other_split[order], split, splits)


def _rank(other_class: np.ndarray, other_split: np.ndarray) -> np.ndarray:
    return np.where(other_class, 0, np.where(other_split, 1, 2))


def _splits(table: pa.Table, assignment: SplitAssignment) -> tuple[np.ndarray, list[str]]:
    """Place of the split of each row, else of the one that the collection names, else -1; names."""
    own = table["split"].cast(pa.string()).combine_chunks().dictionary_encode()
    names = own.dictionary.to_pylist()
    split = own.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    for name, rows in assignment.splits.items():
        names += [name] if name not in names else []
        split[rows] = names.index(name)
    return split, names


def _labels(table: pa.Table, rows: np.ndarray) -> list[list[int]]:
    return table["labels"].take(pa.array(rows)).to_pylist()


def entries(
    table: pa.Table, assignment: SplitAssignment, names: Sequence[str], pairs: CopyPairs
) -> Iterator[dict[str, Any]]:
    """A JSON object for each pair, in their order; labels as names of classes."""
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
                "left_out": assignment.left_out.get(row),
            }


def _split(pairs: CopyPairs, row: int) -> str | None:
    return pairs.splits[pairs.split[row]] if pairs.split[row] >= 0 else None


def _bits(kind: str, looks: np.ndarray, mirrored: np.ndarray, row: int, of: int) -> int | None:
    """Number of bits in which the looks differ, one mirrored if needed; None: the same bytes."""
    if kind == "same_bytes":
        return None
    if kind == "near":
        return int(looks[row] ^ looks[of]).bit_count()
    return min(int(looks[a] ^ mirrored[b]).bit_count() for a, b in ((row, of), (of, row)))


def class_pairs(
    table: pa.Table, names: Sequence[str], pairs: CopyPairs, most: int
) -> dict[str, Any]:
    """Pairs of classes with their numbers of copies, the most frequent first.

    Of several labels only those count that one of the two images alone has, against those of the
    other; an image without such labels counts with all its labels. Of very many labels the first
    MOST_LABELS count.
    """
    counts: dict[tuple[int, int], Counter[str]] = {}
    kinds = list(KINDS.values())
    rows = np.flatnonzero(pairs.other_class)
    for start in range(0, len(rows), _AT_ONCE):
        some = rows[start : start + _AT_ONCE]
        labels = (_labels(table, side[some]) for side in (pairs.copy, pairs.first))
        for k, one, other in zip(some, *labels, strict=True):
            sides = (set(one), set(other)), (set(other), set(one))
            own = ((sorted(a - b) or sorted(a))[:MOST_LABELS] for a, b in sides)
            both = {(min(two), max(two)) for two in itertools.product(*own) if two[0] != two[1]}
            for pair in both:
                counts.setdefault(pair, Counter())[kinds[pairs.kind[k]]] += 1
    ordered = sorted(counts.items(), key=lambda item: (-item[1].total(), item[0]))
    return {
        "number": len(counts),
        "most": [
            {"classes": [names[label] for label in pair], "copies": of.total(), **of}
            for pair, of in ordered[:most]
        ],
    }


def to_show(pairs: CopyPairs) -> Iterator[int]:
    """Places of pairs worth showing (not the same image twice in one class and split), in turn."""
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
    """A pair in words: "mirrored, of another class, test and train"."""
    words = [("the same bytes", "near", "mirrored")[pairs.kind[at]]]
    words += ["of another class"] if pairs.other_class[at] else []
    if pairs.other_split[at]:
        one, other = (_split(pairs, int(side[at])) for side in (pairs.first, pairs.copy))
        words.append(f"{one} and {other}")
    return ", ".join(words)
