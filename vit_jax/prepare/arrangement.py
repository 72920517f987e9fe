"""Which image is in which split and shard, and in what order: a function of the catalogue alone."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from vit_jax.core.errors import UserError
from vit_jax.data.order import label_index
from vit_jax.prepare.copies.duplicates import NEAR_BITS, Duplicates, Evaluation, find
from vit_jax.prepare.copies.near import Progress
from vit_jax.prepare.faults import CONVERT, FAULTS, SET_ASIDE
from vit_jax.prepare.splits import REST, Splits
from vit_jax.prepare.stratified import stratified


@dataclasses.dataclass
class Arrangement:
    """The set.

    Attributes:
      splits: rows of the catalogue in the order of their examples, int64, by the split's name.
      labels: of rows that are examples of several images: all classes of these.
      left_out: why rows are in no split: a fault's name, "duplicate", "merged", "near_duplicate",
        "mirrored", or "in_evaluation:NAME".
      copies: duplicates, whether they are left out or not.
      weights: of `labels`, where one of the images has weights.
    """

    splits: dict[str, np.ndarray]
    labels: dict[int, tuple[int, ...]]
    left_out: dict[int, str]
    copies: Duplicates
    weights: dict[int, tuple[float, ...]] = dataclasses.field(default_factory=dict)


def arrange(
    table: pa.Table,
    splits: Splits,
    *,
    duplicates: str = "keep",
    near_duplicates: str = "report",
    mirrored_duplicates: str = "report",
    near_bits: int = NEAR_BITS,
    evaluations: Sequence[Evaluation] = (),
    stratify: bool = False,
    tell: Progress = lambda done, of: None,
) -> Arrangement:
    """Puts the images of a catalogue in their places.

    Args:
      table: catalogue.SCHEMA, the parts in their order.
      splits: of images whose part names none.
      duplicates: what becomes of images with the very bytes of one before them: "keep", "drop",
        or "merge", which gives their labels to the first.
      near_duplicates: "report" or "drop" images that look like one before them.
      mirrored_duplicates: the same of images that do so when mirrored left to right.
      near_bits: see duplicates.find.
      evaluations: sets whose images are left out, but for splits that the collection itself holds
        out: those that it names, and not `train...`.
      stratify: see stratified.stratified; of images with several labels the first one counts.
      tell: see near.near_pairs.

    Raises:
      UserError: nothing is left for a split.
    """
    order = np.argsort(table["order"].to_numpy(), kind="stable")
    left_out = _set_aside(table, order)
    in_training = _in_training(table)
    # What is held out stays as it is, and goes before what is trained on.
    rows = order[~np.isin(order, np.fromiter(left_out, np.int64, len(left_out)))]
    rows = np.concatenate([rows[~in_training[rows]], rows[in_training[rows]]])
    copies = find(
        table,
        rows,
        near_bits,
        evaluations,
        in_training,
        without_near=near_duplicates == "drop",
        without_mirrored=mirrored_duplicates == "drop",
        tell=tell,
    )
    left_out |= {row: f"in_evaluation:{name}" for row, name in copies.evaluated.items()}
    if mirrored_duplicates == "drop":
        left_out |= dict.fromkeys(copies.mirrored, "mirrored")
    if near_duplicates == "drop":
        left_out |= dict.fromkeys(copies.near, "near_duplicate")
    if duplicates != "keep":
        left_out |= dict.fromkeys(copies.same, "duplicate" if duplicates == "drop" else "merged")
    merged = _merged(table, copies.same, left_out) if duplicates == "merge" else {}
    kept = order[~np.isin(order, np.fromiter(left_out, np.int64, len(left_out)))]
    _refuse_emptied(table, kept, left_out)
    return Arrangement(
        _split(table, kept, splits, left_out, stratify),
        {row: tuple(weights) for row, (weights, _) in merged.items()},
        left_out,
        copies,
        {row: tuple(weights.values()) for row, (weights, given) in merged.items() if given},
    )


def weighted(table: pa.Table, arranged: Arrangement) -> bool:
    """Whether labels of the set have weights."""
    given = pc.greater(pc.list_value_length(table["weights"]), 0).to_numpy()
    return bool(arranged.weights) or any(given[rows].any() for rows in arranged.splits.values())


def _refuse_emptied(table: pa.Table, kept: np.ndarray, left_out: dict[int, str]) -> None:
    """UserError if nothing is left of a split that the collection names."""
    split = table["split"].cast(pa.string())
    remaining = set(split.take(pa.array(kept)).unique().to_pylist())
    for name in split.unique().to_pylist():
        if name not in remaining and name is not None:
            rows = np.flatnonzero(pc.fill_null(pc.equal(split, name), False).to_numpy())
            why = reasons({int(row): left_out[int(row)] for row in rows})
            raise UserError(
                f"Nothing is left of {name}: of its {len(rows):,} images were left out "
                + ", ".join(f"{number:,} as {reason}" for reason, number in why)
                + ". Change --policy, --duplicates or --drop_duplicates_of, or leave the split out."
            )


def _in_training(table: pa.Table) -> np.ndarray:
    """bool [n]: not in a split that the collection itself holds out."""
    split = table["split"].cast(pa.string())
    return pc.fill_null(pc.starts_with(split, "train"), True).to_numpy()


def _set_aside(table: pa.Table, order: np.ndarray) -> dict[int, str]:
    """Rows with a fault whose action says so, and those with a name that was there already."""
    rows = np.flatnonzero(pc.equal(table["action"].cast(pa.string()), SET_ASIDE).to_numpy())
    # A name has one place in the order: only neighbours can be the same.
    hashes = table["order"].to_numpy()[order]
    found = {int(row): table["faults"][int(row)].as_py()[-1] for row in rows}
    names = table["name"]
    for place in np.flatnonzero(hashes[1:] == hashes[:-1]) + 1:
        before, row = int(order[place - 1]), int(order[place])
        if names[before].as_py() == names[row].as_py():
            found.setdefault(row, "same_name")
    return found


def _merged(
    table: pa.Table, same: dict[int, int], left_out: dict[int, str]
) -> dict[int, tuple[dict[int, float], bool]]:
    """Of rows that stay for others: all labels, rising, with the largest of each one's weights.

    And whether any were given; a label without one weighs 1.
    """
    rows: dict[int, list[int]] = {}
    for row, first in same.items():
        if first not in left_out:
            rows.setdefault(first, [first]).append(row)
    found = {}
    for first, of in rows.items():
        weights: dict[int, float] = {}
        given = False
        for row in of:
            labels, own = table["labels"][row].as_py(), table["weights"][row].as_py()
            given |= bool(own)
            for label, weight in zip(labels, own or [1.0] * len(labels), strict=True):
                weights[label] = max(weights.get(label, 0.0), weight)
        found[first] = dict(sorted(weights.items())), given
    return found


def _split(
    table: pa.Table, kept: np.ndarray, splits: Splits, left_out: dict[int, str], stratify: bool
) -> dict[str, np.ndarray]:
    column = table["split"].cast(pa.string()).combine_chunks()
    given = column.is_valid().to_numpy(zero_copy_only=False)[kept]
    found: dict[str, np.ndarray] = {}
    if given.any():
        names = column.to_numpy(zero_copy_only=False)[kept]
        found = {str(name): kept[names == name] for name in sorted(set(names[given]))}
    free = kept[~given]
    if stratify and (len(splits) == 1 or (found and not len(free))):
        named = f"the collection names {', '.join(found)}" if found else "all are in one"
        raise UserError(
            f"--stratify is for splits that --splits makes, and {named}: leave it out, or say "
            "how many are split off, as --splits=validation=500,train=rest."
        )
    if not len(free) and found:
        return found
    taken = sum(number or 0 for _, number in splits)
    if len(free) <= taken:
        wanted = ",".join(f"{name}={number or REST}" for name, number in splits)
        said = (
            f"{len(free):,} images are left, and --splits wants {taken:,} and some for the rest: "
            f"{wanted}"
            if taken
            else "0 images are left"
        )
        raise UserError(said + _explained(left_out))
    if stratify:
        labels = pc.list_element(table["labels"].take(pa.array(free)), 0).to_numpy()
        places = stratified(labels, splits)
    else:
        numbers = [len(free) - taken if number is None else number for _, number in splits]
        ends = np.cumsum(numbers)[:-1]
        names_of_splits = [name for name, _ in splits]
        places = dict(zip(names_of_splits, np.split(np.arange(len(free)), ends), strict=True))
    for name, at in places.items():
        found[name] = np.concatenate([found.get(name, kept[:0]), free[at]])
    return found


def reasons(left_out: Mapping[int, str]) -> list[tuple[str, int]]:
    """Why images were left out and how many, the most frequent first."""
    return Counter(left_out.values()).most_common()


def _explained(left_out: Mapping[int, str]) -> str:
    told = [
        f"{number:,} {reason}" + (f": {FAULTS[reason].what}" if reason in FAULTS else "")
        for reason, number in reasons(left_out)
    ]
    return f" ({'; '.join(told)})" if told else ""


def shard_ends(nbytes: np.ndarray, shard_bytes: int) -> list[int]:
    """Where the shards of a split end: of nearly equal numbers of examples, int in (0, n]."""
    count = min(max(1, round(float(nbytes.sum()) / shard_bytes)), len(nbytes))
    return [len(nbytes) * (i + 1) // count for i in range(count)]


def entries(table: pa.Table, rows: np.ndarray, arranged: Arrangement) -> Sequence[tuple]:
    """(name, labels, weights, path, offset, nbytes, sha256) of rows, as Python objects.

    sha256 is None of images that were converted.
    """
    columns = ["name", "labels", "weights", "path", "offset", "nbytes", "sha256"]
    part = table.select([*columns, "action"]).take(pa.array(rows)).to_pydict()
    part["sha256"] = [
        None if action == CONVERT else digest
        for action, digest in zip(part["action"], part["sha256"], strict=True)
    ]
    for column, merged in (("labels", arranged.labels), ("weights", arranged.weights)):
        own = zip(rows.tolist(), part[column], strict=True)
        part[column] = [merged.get(row, tuple(of_row)) for row, of_row in own]
    return list(zip(*(part[column] for column in columns), strict=True))


def label_index_of(
    table: pa.Table, rows: np.ndarray, labels: dict[int, tuple[int, ...]]
) -> label_index.Labels:
    """The labels of rows, in that order."""
    own = pa.concat_arrays(table["labels"].take(pa.array(rows)).chunks)
    if labels:
        merged = [labels.get(int(row)) for row in rows]
        lists = zip(merged, own.to_pylist(), strict=True)
        return label_index.collect([one or each for one, each in lists])
    offsets = own.offsets.to_numpy().astype(np.int64)
    values = own.values.to_numpy()[offsets[0] : offsets[-1]]
    return label_index.Labels(offsets - offsets[0], values.astype(np.int32))
