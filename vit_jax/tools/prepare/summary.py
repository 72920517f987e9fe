"""The contents of report.json and of the lists: whether a data set is the right one.

Pairs of an image and its copy: harmful ones come first. Of two classes one label is wrong, or both
apply; of two splits an image is both trained and evaluated on. Other copies only count more than
once.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from vit_jax.tools.prepare import faults
from vit_jax.tools.prepare.collection import Collection, rows_at
from vit_jax.tools.prepare.prepared_set import WrittenSet
from vit_jax.tools.prepare.split_assignment import SplitAssignment

BINS = 4  # of a distribution, for each factor of 2
EXTREMES = 10  # classes with the most and the fewest examples

REASONS = {
    "duplicate": "the same bytes as an image before it",
    "merged": "the same bytes as an image before it, which has its labels too",
    "near_duplicate": "looks like an image before it",
    "mirrored": "looks like an image before it when mirrored",
}


def summary(
    data_set: WrittenSet, collection: Collection, policy: faults.Policy, pairs: CopyPairs
) -> dict[str, Any]:
    table, assignment = data_set.table, data_set.assignment
    kept = _kept(assignment)
    return {
        "name": collection.name,
        "content": data_set.digest,
        "notes": list(collection.notes),
        "images": {
            "listed": len(table),
            "examples": len(kept),
            "left_out": len(assignment.left_out),
            "bytes_read": int(pc.sum(table["nbytes"]).as_py() or 0),
        },
        "splits": {
            name: {
                "examples": sum(size.shard_lengths),
                "files": len(size.shard_lengths),
                "bytes": size.nbytes,
            }
            for name, size in data_set.splits.items()
        },
        "left_out": dict(Counter(assignment.left_out.values()).most_common()),
        "faults": _faults(table, policy),
        "formats": _counts(table["format"]),
        "shorter_side": _distribution(
            np.minimum(table["height"].to_numpy(), table["width"].to_numpy())[kept]
        ),
        "file_bytes": _distribution(table["nbytes"].to_numpy()[kept]),
        "classes": _classes(table, assignment, collection.class_names),
        "duplicates": {
            **duplicates(assignment, pairs),
            "class_pairs": class_pairs(table, collection.class_names, pairs),
        },
    }


def reason_in_words(reason: str) -> str:
    kind, _, name = reason.partition(":")
    words = {"in_evaluation": f"also in the evaluation set {name}", **REASONS}
    return words.get(kind) or faults.FAULTS[kind].description


def left_out(table: pa.Table, assignment: SplitAssignment) -> Iterator[dict[str, Any]]:
    """A JSON object for each image that is left out, in the order of the collection."""
    copies = assignment.copies
    of = {"near_duplicate": copies.near, "mirrored": copies.mirrored}  # else of the same bytes
    rows = np.array(sorted(assignment.left_out), np.int64)
    columns = ["name", "faults", "format", "width", "height", "nbytes"]
    for row, one in zip(rows.tolist(), rows_at(table, columns, rows), strict=True):
        why = assignment.left_out[row]
        entry = {"name": one.pop("name"), "why": why} | one
        if why in REASONS:
            entry["of"] = table["name"][of.get(why, copies.same)[row]].as_py()
        yield entry


def _faults(table: pa.Table, policy: faults.Policy) -> dict[str, dict[str, Any]]:
    rows = np.repeat(np.arange(len(table)), pc.list_value_length(table["faults"]).to_numpy())
    names = pc.list_flatten(table["faults"]).cast(pa.string()).to_numpy(zero_copy_only=False)
    actions = table["action"].cast(pa.string()).to_numpy(zero_copy_only=False)
    counts = {}
    for name, fault in faults.FAULTS.items():
        if images := int((names == name).sum()):
            became = dict(Counter(actions[rows[names == name]].tolist()))
            about = {"what": fault.description, "images": images, "policy": policy[name]}
            counts[name] = {**about, "became": became}
    return counts


def _counts(column: pa.ChunkedArray) -> dict[str, int]:
    counts = pc.value_counts(column.cast(pa.string())).to_pylist()
    ordered = Counter({one["values"]: one["counts"] for one in counts}).most_common()
    return {name or "unknown": number for name, number in ordered}


def _kept(assignment: SplitAssignment) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.int64), *assignment.splits.values()])


def _distribution(values: np.ndarray) -> dict[str, Any]:
    if not len(values):
        return {"min": None, "median": None, "max": None, "mean": None, "bins": []}
    bins = np.floor(BINS * np.log2(np.maximum(values, 1)) + 1e-9).astype(int)
    first = bins.min()
    counts = np.bincount(bins - first)
    edges = [round(2 ** ((first + i) / BINS), 1) for i in range(len(counts) + 1)]
    return {
        "min": int(values.min()),
        "median": float(np.median(values)),
        "max": int(values.max()),
        "mean": round(float(values.mean()), 1),
        "bins": [[edges[i], edges[i + 1], int(number)] for i, number in enumerate(counts)],
    }


def _classes(table: pa.Table, assignment: SplitAssignment, names: Sequence[str]) -> dict[str, Any]:
    counts = labels_of(table, assignment, _kept(assignment), len(names))
    empty = np.flatnonzero(counts == 0)
    filled = np.argsort(-counts, kind="stable")[: len(names) - len(empty)]
    by_split = {
        name: labels_of(table, assignment, rows, len(names))
        for name, rows in assignment.splits.items()
    }
    extremes = {"most": filled[:EXTREMES], "fewest": filled[EXTREMES:][::-1][:EXTREMES]}
    return {
        "number": len(names),
        "labels": int(counts.sum()),
        "empty": len(empty),
        "empty_names": [names[i] for i in empty.tolist()],
        **{key: [[names[i], int(counts[i])] for i in classes] for key, classes in extremes.items()},
        "examples_of_each": counts.tolist(),
        "in_splits": {name: int((of > 0).sum()) for name, of in by_split.items()},
        "only_elsewhere": {
            name: [names[i] for i in np.flatnonzero((counts > 0) & (of == 0)).tolist()]
            for name, of in by_split.items()
        },
    }


def labels_of(
    table: pa.Table, assignment: SplitAssignment, rows: np.ndarray, classes: int
) -> np.ndarray:
    merged = np.fromiter(assignment.labels, np.int64, len(assignment.labels))
    own = table["labels"].take(pa.array(rows[~np.isin(rows, merged)]))
    counts = np.bincount(pc.list_flatten(own).to_numpy(), minlength=classes)
    for row in merged[np.isin(merged, rows)]:
        counts[list(assignment.labels[int(row)])] += 1
    return counts


def duplicates(assignment: SplitAssignment, pairs: CopyPairs) -> dict[str, Any]:
    copies, counts = assignment.copies, dict[str, Any]()
    for number, kind in enumerate(KINDS.values()):
        of_kind = pairs.kind == number
        other = of_kind & pairs.other_class
        counts[kind] = {"images": int(of_kind.sum()), "of_other_classes": int(other.sum())}
    kept = _kept(assignment)
    across = pairs.other_split & np.isin(pairs.copy, kept) & np.isin(pairs.first, kept)
    counts["across_splits"] = len(np.unique(pairs.copy[across]))
    left_out = Counter(copies.evaluated.values())
    counts["in_evaluation"] = {
        name: {"left_out": left_out[name], "images_of_it": number}
        for name, number in copies.matched.items()
    }
    counts["in_evaluation_by_look"] = copies.by_look
    counts["mirrored_in_evaluation"] = copies.mirrored_in
    counts["not_compared"] = copies.not_compared
    return counts


# Field of Duplicates -> its name in reports.
KINDS = {"same": "same_bytes", "near": "near", "mirrored": "mirrored"}
MOST_LABELS = 10  # of an image, in class_pairs
CLASS_PAIRS = 1000  # that are listed


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
    pairs = zip(_labels(table, copy), _labels(table, first), strict=True)
    other_class = np.array([one != other for one, other in pairs], bool)
    rank = np.where(other_class, 0, np.where(other_split, 1, 2))
    order = np.lexsort((kind, table["order"].to_numpy()[copy], rank))
    kind, first, copy = kind[order], first[order], copy[order]
    return CopyPairs(kind, first, copy, other_class[order], other_split[order], split, splits)


def _splits(table: pa.Table, assignment: SplitAssignment) -> tuple[np.ndarray, list[str]]:
    """Place of the split of each row, else of the one that the collection names, else -1; names."""
    own = table["split"].cast(pa.string()).combine_chunks().dictionary_encode()
    names = own.dictionary.to_pylist()
    split = own.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    for name, rows in assignment.splits.items():
        names += [name] if name not in names else []
        split[rows] = names.index(name)
    return split, names


def _labels(table: pa.Table, rows: np.ndarray) -> Iterator[set[int]]:
    return (set(row["labels"]) for row in rows_at(table, ["labels"], rows))


def entries(
    table: pa.Table, assignment: SplitAssignment, names: Sequence[str], pairs: CopyPairs
) -> Iterator[dict[str, Any]]:
    """A JSON object for each pair, in their order; labels as names of classes."""
    kinds = list(KINDS.values())
    looks = table["look"].fill_null(0).to_numpy()
    mirrored = table["mirrored"].fill_null(0).to_numpy()
    sides = (rows_at(table, ["name", "labels"], rows) for rows in (pairs.copy, pairs.first))
    for k, (one, other) in enumerate(zip(*sides, strict=True)):
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


def class_pairs(table: pa.Table, names: Sequence[str], pairs: CopyPairs) -> dict[str, Any]:
    """Pairs of classes with their numbers of copies, the CLASS_PAIRS most frequent first.

    Of several labels only those count that one of the two images alone has, against those of the
    other; an image without such labels counts with all its labels. Of very many labels the first
    MOST_LABELS count.
    """
    counts: dict[tuple[int, int], Counter[str]] = {}
    kinds = list(KINDS.values())
    rows = np.flatnonzero(pairs.other_class)
    labels = (_labels(table, side[rows]) for side in (pairs.copy, pairs.first))
    for k, one, other in zip(rows, *labels, strict=True):
        sides = (one, other), (other, one)
        own = ((sorted(a - b) or sorted(a))[:MOST_LABELS] for a, b in sides)
        both = {(min(two), max(two)) for two in itertools.product(*own) if two[0] != two[1]}
        for pair in both:
            counts.setdefault(pair, Counter())[kinds[pairs.kind[k]]] += 1
    ordered = sorted(counts.items(), key=lambda item: (-item[1].total(), item[0]))
    return {
        "number": len(counts),
        "most": [
            {"classes": [names[label] for label in pair], "copies": of.total(), **of}
            for pair, of in ordered[:CLASS_PAIRS]
        ],
    }


def to_show(pairs: CopyPairs) -> list[int]:
    """Places of pairs worth showing: not the same image twice in one class and split."""
    is_same = pairs.kind == list(KINDS).index("same")
    return np.flatnonzero(~is_same | pairs.other_class | pairs.other_split).tolist()


def in_words(pairs: CopyPairs, at: int) -> str:
    words = [("the same bytes", "near", "mirrored")[pairs.kind[at]]]
    words += ["of another class"] if pairs.other_class[at] else []
    if pairs.other_split[at]:
        one, other = (_split(pairs, int(side[at])) for side in (pairs.first, pairs.copy))
        words.append(f"{one} and {other}")
    return ", ".join(words)
