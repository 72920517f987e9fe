"""What report.json says of a data set: numbers that show whether it is the right one."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from vit_jax.prepare import faults
from vit_jax.prepare.arrangement import Arrangement
from vit_jax.prepare.collection import Collection
from vit_jax.prepare.prepared import Prepared

BINS = 4  # of a distribution, for each factor of 2
EXTREMES = 10  # classes with the most and the fewest examples

REASONS = {
    "duplicate": "the same bytes as an image before it",
    "merged": "the same bytes as an image before it, which has its labels too",
    "near_duplicate": "looks like an image before it",
    "mirrored": "looks like an image before it when mirrored",
}


def summary(found: Prepared, collection: Collection, policy: faults.Policy) -> dict[str, Any]:
    """As JSON."""
    table, arranged = found.table, found.arrangement
    examples = sum(len(rows) for rows in arranged.splits.values())
    return {
        "name": collection.name,
        "content": found.digest,
        "notes": list(collection.notes),
        "images": {
            "listed": len(table),
            "examples": examples,
            "left_out": len(arranged.left_out),
            "bytes_read": int(pc.sum(table["nbytes"]).as_py() or 0),
        },
        "splits": {
            name: {
                "examples": sum(size.shard_lengths),
                "files": len(size.shard_lengths),
                "bytes": size.nbytes,
            }
            for name, size in found.splits.items()
        },
        "left_out": dict(Counter(arranged.left_out.values()).most_common()),
        "faults": _faults(table, policy),
        "formats": _counts(table["format"]),
        "shorter_side": _distribution(_kept(arranged), _shorter_side(table)),
        "file_bytes": _distribution(_kept(arranged), table["nbytes"].to_numpy()),
        "classes": _classes(table, arranged, collection.class_names),
        "duplicates": duplicates(table, arranged),
    }


def what(reason: str) -> str:
    """Why images are left out, in words."""
    kind, _, name = reason.partition(":")
    if kind == "in_evaluation":
        return f"also in the evaluation set {name}"
    return REASONS.get(kind) or faults.FAULTS[kind].what


def left_out(table: pa.Table, arranged: Arrangement) -> Iterator[dict[str, Any]]:
    """An object for each image that is not in the set, in the order of the collection."""
    copies = arranged.copies
    of = {"near_duplicate": copies.near, "mirrored": copies.mirrored}  # else of the same bytes
    rows = sorted(arranged.left_out)
    columns = ["name", "faults", "format", "width", "height", "nbytes"]
    for start in range(0, len(rows), 10_000):
        batch = rows[start : start + 10_000]
        for row, one in zip(batch, _taken(table, columns, batch), strict=True):
            why = arranged.left_out[row]
            found = {"name": one.pop("name"), "why": why} | one
            if why in REASONS:
                found["of"] = table["name"][of.get(why, copies.same)[row]].as_py()
            yield found


def _taken(table: pa.Table, columns: Sequence[str], rows: Sequence[int]) -> list[dict[str, Any]]:
    return table.select(columns).take(pa.array(rows, pa.int64())).to_pylist()


def lines(found: Iterator[Mapping[str, Any]]) -> Iterator[str]:
    """JSON lines; a name that is no text shows its bytes as \\udcXX."""
    for one in found:
        yield json.dumps(one) + "\n"


def _faults(table: pa.Table, policy: faults.Policy) -> dict[str, dict[str, Any]]:
    """Of each fault that was found: how many images have it, and what became of these."""
    rows = np.repeat(np.arange(len(table)), pc.list_value_length(table["faults"]).to_numpy())
    names = pc.list_flatten(table["faults"]).cast(pa.string()).to_numpy(zero_copy_only=False)
    actions = table["action"].cast(pa.string()).to_numpy(zero_copy_only=False)
    found = {}
    for name, fault in faults.FAULTS.items():
        with_it = rows[names == name]
        if len(with_it):
            became = Counter(actions[with_it].tolist())
            counts = {action: became[action] for action in faults.ACTIONS if became[action]}
            images = {"images": len(with_it), "policy": policy[name]}
            found[name] = {"what": fault.what, **images, "became": counts}
    return found


def _counts(column: pa.ChunkedArray) -> dict[str, int]:
    found = Counter(
        {
            one["values"]: one["counts"]
            for one in pc.value_counts(column.cast(pa.string())).to_pylist()
        }
    )
    return {name or "unknown": number for name, number in found.most_common()}


def _kept(arranged: Arrangement) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.int64), *arranged.splits.values()])


def _shorter_side(table: pa.Table) -> np.ndarray:
    return np.minimum(table["height"].to_numpy(), table["width"].to_numpy())


def _distribution(rows: np.ndarray, values: np.ndarray) -> dict[str, Any]:
    """Of the images that are kept; the edges of bins grow by equal factors."""
    values = values[rows]
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


def _classes(table: pa.Table, arranged: Arrangement, names: Sequence[str]) -> dict[str, Any]:
    counts = labels_of(table, arranged, _kept(arranged), len(names))
    by_count = np.argsort(-counts, kind="stable")
    empty = np.flatnonzero(counts == 0)
    filled = by_count[: len(names) - len(empty)]
    by_split = {
        name: labels_of(table, arranged, rows, len(names)) for name, rows in arranged.splits.items()
    }
    told = lambda classes: [[names[i], int(counts[i])] for i in classes]
    return {
        "number": len(names),
        "labels": int(counts.sum()),
        "empty": len(empty),
        "empty_names": [names[i] for i in empty.tolist()],
        "most": told(filled[:EXTREMES]),
        "fewest": told(filled[EXTREMES:][::-1][:EXTREMES]),
        "examples_of_each": counts.tolist(),
        "in_splits": {name: int((of > 0).sum()) for name, of in by_split.items()},
        "only_elsewhere": {
            name: [names[i] for i in np.flatnonzero((counts > 0) & (of == 0)).tolist()]
            for name, of in by_split.items()
        },
    }


def labels_of(table: pa.Table, arranged: Arrangement, rows: np.ndarray, classes: int) -> np.ndarray:
    """int64 [classes], how many of the examples at `rows` are of each class."""
    merged = np.fromiter(arranged.labels, np.int64, len(arranged.labels))
    own = table["labels"].take(pa.array(rows[~np.isin(rows, merged)]))
    counts = np.bincount(pc.list_flatten(own).to_numpy(), minlength=classes)
    for row in merged[np.isin(merged, rows)]:
        counts[list(arranged.labels[int(row)])] += 1
    return counts


def duplicates(table: pa.Table, arranged: Arrangement) -> dict[str, Any]:
    """How many copies of which kind were found, whether they are left out or not."""
    copies = arranged.copies
    split = np.full(len(table), -1)
    for number, rows in enumerate(arranged.splits.values()):
        split[rows] = number
    found: dict[str, Any] = {
        kind: {"images": len(of), "of_other_classes": _of_other_classes(table, of)}
        for kind, of in (
            ("same_bytes", copies.same),
            ("near", copies.near),
            ("mirrored", copies.mirrored),
        )
    }
    pairs = itertools.chain(copies.same.items(), copies.near.items(), copies.mirrored.items())
    found["across_splits"] = len({row for row, of in pairs if 0 <= split[row] != split[of] >= 0})
    left_out = Counter(copies.evaluated.values())
    found["in_evaluation"] = {
        name: {"left_out": left_out[name], "images_of_it": number}
        for name, number in copies.matched.items()
    }
    found["in_evaluation_by_look"] = copies.by_look
    found["mirrored_in_evaluation"] = copies.mirrored_in
    found["not_compared"] = copies.not_compared
    return found


def _of_other_classes(table: pa.Table, of: Mapping[int, int]) -> int:
    take = lambda rows: table["labels"].take(pa.array(list(rows), pa.int64())).to_pylist()
    pairs = zip(take(of.keys()), take(of.values()), strict=True)
    return sum(set(one) != set(other) for one, other in pairs)
