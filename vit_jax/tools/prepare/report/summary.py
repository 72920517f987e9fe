"""The contents of report.json: numbers that show whether a data set is the right one."""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from vit_jax.tools.prepare import faults
from vit_jax.tools.prepare.collection import Collection
from vit_jax.tools.prepare.prepared_set import PreparedSet
from vit_jax.tools.prepare.split_assignment import SplitAssignment

BINS = 4  # of a distribution, for each factor of 2
EXTREMES = 10  # classes with the most and the fewest examples

REASONS = {
    "duplicate": "the same bytes as an image before it",
    "merged": "the same bytes as an image before it, which has its labels too",
    "near_duplicate": "looks like an image before it",
    "mirrored": "looks like an image before it when mirrored",
}


def summary(data_set: PreparedSet, collection: Collection, policy: faults.Policy) -> dict[str, Any]:
    """Counts and distributions of a data set, for JSON."""
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
        "duplicates": duplicates(table, assignment),
    }


def what(reason: str) -> str:
    """The reason that images are left out, in words."""
    kind, _, name = reason.partition(":")
    if kind == "in_evaluation":
        return f"also in the evaluation set {name}"
    return REASONS.get(kind) or faults.FAULTS[kind].what


def left_out(table: pa.Table, assignment: SplitAssignment) -> Iterator[dict[str, Any]]:
    """A JSON object for each image that is left out, in the order of the collection."""
    copies = assignment.copies
    of = {"near_duplicate": copies.near, "mirrored": copies.mirrored}  # else of the same bytes
    rows = sorted(assignment.left_out)
    columns = ["name", "faults", "format", "width", "height", "nbytes"]
    for start in range(0, len(rows), 10_000):
        batch = rows[start : start + 10_000]
        taken = table.select(columns).take(pa.array(batch, pa.int64())).to_pylist()
        for row, one in zip(batch, taken, strict=True):
            why = assignment.left_out[row]
            entry = {"name": one.pop("name"), "why": why} | one
            if why in REASONS:
                entry["of"] = table["name"][of.get(why, copies.same)[row]].as_py()
            yield entry


def _faults(table: pa.Table, policy: faults.Policy) -> dict[str, dict[str, Any]]:
    """Fault -> number of images that have it, and the actions taken for these."""
    rows = np.repeat(np.arange(len(table)), pc.list_value_length(table["faults"]).to_numpy())
    names = pc.list_flatten(table["faults"]).cast(pa.string()).to_numpy(zero_copy_only=False)
    actions = table["action"].cast(pa.string()).to_numpy(zero_copy_only=False)
    counts = {}
    for name, fault in faults.FAULTS.items():
        with_it = rows[names == name]
        if len(with_it):
            taken = Counter(actions[with_it].tolist())
            became = {action: taken[action] for action in faults.ACTIONS if taken[action]}
            images = {"images": len(with_it), "policy": policy[name]}
            counts[name] = {"what": fault.what, **images, "became": became}
    return counts


def _counts(column: pa.ChunkedArray) -> dict[str, int]:
    counts = pc.value_counts(column.cast(pa.string())).to_pylist()
    ordered = Counter({one["values"]: one["counts"] for one in counts}).most_common()
    return {name or "unknown": number for name, number in ordered}


def _kept(assignment: SplitAssignment) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.int64), *assignment.splits.values()])


def _distribution(values: np.ndarray) -> dict[str, Any]:
    """Distribution of the values in bins whose edges grow by equal factors."""
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
    by_count = np.argsort(-counts, kind="stable")
    empty = np.flatnonzero(counts == 0)
    filled = by_count[: len(names) - len(empty)]
    by_split = {
        name: labels_of(table, assignment, rows, len(names))
        for name, rows in assignment.splits.items()
    }
    counted = lambda classes: [[names[i], int(counts[i])] for i in classes]
    return {
        "number": len(names),
        "labels": int(counts.sum()),
        "empty": len(empty),
        "empty_names": [names[i] for i in empty.tolist()],
        "most": counted(filled[:EXTREMES]),
        "fewest": counted(filled[EXTREMES:][::-1][:EXTREMES]),
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
    """int64 [classes], number of the examples at `rows` in each class."""
    merged = np.fromiter(assignment.labels, np.int64, len(assignment.labels))
    own = table["labels"].take(pa.array(rows[~np.isin(rows, merged)]))
    counts = np.bincount(pc.list_flatten(own).to_numpy(), minlength=classes)
    for row in merged[np.isin(merged, rows)]:
        counts[list(assignment.labels[int(row)])] += 1
    return counts


def duplicates(table: pa.Table, assignment: SplitAssignment) -> dict[str, Any]:
    """Numbers of copies by kind, whether they are left out or not."""
    copies = assignment.copies
    split = np.full(len(table), -1)
    for number, rows in enumerate(assignment.splits.values()):
        split[rows] = number
    counts: dict[str, Any] = {
        kind: {"images": len(of), "of_other_classes": _of_other_classes(table, of)}
        for kind, of in (
            ("same_bytes", copies.same),
            ("near", copies.near),
            ("mirrored", copies.mirrored),
        )
    }
    pairs = itertools.chain(copies.same.items(), copies.near.items(), copies.mirrored.items())
    counts["across_splits"] = len({row for row, of in pairs if 0 <= split[row] != split[of] >= 0})
    left_out = Counter(copies.evaluated.values())
    counts["in_evaluation"] = {
        name: {"left_out": left_out[name], "images_of_it": number}
        for name, number in copies.matched.items()
    }
    counts["in_evaluation_by_look"] = copies.by_look
    counts["mirrored_in_evaluation"] = copies.mirrored_in
    counts["not_compared"] = copies.not_compared
    return counts


def _of_other_classes(table: pa.Table, of: Mapping[int, int]) -> int:
    take = lambda rows: table["labels"].take(pa.array(list(rows), pa.int64())).to_pylist()
    pairs = zip(take(of.keys()), take(of.values()), strict=True)
    return sum(set(one) != set(other) for one, other in pairs)
