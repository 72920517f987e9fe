"""Split, order and shard of each image: a function of the catalogue and the options alone."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from vit_jax.core.errors import UserError
from vit_jax.data import label_index
from vit_jax.data.sources.split_names import KEYWORDS, only_split, splits_said
from vit_jax.tools.prepare.collection import ImageRow, Labels, PrepareOptions, rows_at
from vit_jax.tools.prepare.duplicates import Duplicates, EvaluationSet, Progress, find
from vit_jax.tools.prepare.entries import SPLIT_NAME
from vit_jax.tools.prepare.faults import FAULTS, SET_ASIDE

REST = "rest"


class Splits(tuple[tuple[str, int | None], ...]):
    @classmethod
    def parse(cls, text: str) -> Splits:
        items = [item.partition("=") for item in text.split(",")]
        names = [name for name, _, _ in items]
        form = re.compile(rf"{SPLIT_NAME}=({REST}|[1-9]\d*)")
        is_form = all(form.fullmatch(item) for item in text.split(","))
        rests = [number for _, _, number in items].count(REST)
        if not is_form or len(set(names)) < len(names) or rests != 1:
            rule = "is not of names and numbers, one of them rest: test=25600,train=rest."
            raise UserError(rule, field="--splits", value=text)
        return cls((name, None if number == REST else int(number)) for name, _, number in items)

    def places(self, total: int) -> dict[str, np.ndarray]:
        """Consecutive places of `total` images, by split; for the rest at least 0."""
        taken = sum(number or 0 for _, number in self)
        sizes = [total - taken if number is None else number for _, number in self]
        pieces = np.split(np.arange(total), np.cumsum(sizes)[:-1])
        return {name: piece for (name, _), piece in zip(self, pieces, strict=True)}


def stratified(classes: np.ndarray, splits: Splits) -> dict[str, np.ndarray]:
    """Places of each split in `classes`, int [N], of the images in the order of the set.

    They are rising; every place is in exactly one split. Of a class with n of all N images, the
    first k splits with a number, which together take T, get n T / N, rounded down or up: up where
    most is cut off, in ties where an image comes first, so that each split has its number. One
    image of each class is always in the rest: a class with one image is in the rest alone, and of
    two images at most one is in another split. Where so many classes are so small that the others
    must give more, they do, again in proportion. The first images of a class go to the split that
    is named first.
    """
    total = len(classes)
    _, first, member, counts = np.unique(
        classes, return_index=True, return_inverse=True, return_counts=True
    )
    by_class = np.argsort(member, kind="stable")
    within = np.empty(total, np.int64)  # number of earlier images of the same class
    within[by_class] = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    start = np.zeros(len(counts), np.int64)  # of the split, among the images of each class
    places = {name: np.zeros(0, np.int64) for name, _ in splits}
    taken = 0
    for name, number in splits:
        if number is None:
            continue
        room = int((counts - 1 - start).sum())
        if number > room:
            rule = f"leaves one image of each class for the {REST}: the most is {name}={room}."
            raise UserError(rule, field="--stratify")
        taken += number
        end = start + _quotas(counts, start, number, taken, total, first)
        places[name] = np.flatnonzero((within >= start[member]) & (within < end[member]))
        start = end
    (rest,) = (name for name, number in splits if number is None)
    places[rest] = np.flatnonzero(within >= start[member])
    return places


def _quotas(
    counts: np.ndarray, given: np.ndarray, number: int, taken: int, total: int, first: np.ndarray
) -> np.ndarray:
    """int64 [classes], images of each class in a split of this number."""
    room = counts - 1 - given
    exact = counts * taken - given * total  # in units of 1 / total
    quotas = np.clip(exact // total, 0, room)
    # Earlier splits may have got more than their share, so that these classes now have less.
    order = np.lexsort((first, -(exact - quotas * total)))
    while short := number - int(quotas.sum()):
        if short < 0:
            quotas[order[quotas[order] > 0][short:]] -= 1
            continue
        some = order[(room > quotas)[order]]
        if short <= len(some):
            quotas[some[:short]] += 1
        else:  # small classes have given all they can: the others give more
            more = counts[some] * short // int(counts[some].sum())
            quotas[some] += np.minimum(np.maximum(more, 1), (room - quotas)[some])
    return quotas


@dataclasses.dataclass
class SplitAssignment:
    splits: dict[str, np.ndarray]  # int64 rows in the order of their examples
    labels: dict[int, Labels]  # of rows that are examples of several images: all classes of these
    # Row -> the reason: a fault's name, "duplicate", "merged", "near_duplicate", "mirrored", or
    # "in_evaluation:NAME".
    left_out: dict[int, str]
    copies: Duplicates  # whether they are left out or not
    # Of `labels`, where one of the images has weights.
    weights: dict[int, tuple[float, ...]] = dataclasses.field(default_factory=dict)


def named_splits(table: pa.Table) -> tuple[pa.Table, tuple[str, ...]]:
    """The catalogue with the splits that names of images say, such as train/a.png; and a note.

    Names say splits where folders, or else files, say `train` in some and a split that is held out
    in others. UserError if others of these say none, or several.
    """
    split = table["split"].cast(pa.string()).combine_chunks()
    is_aside = pc.equal(table["action"].cast(pa.string()), SET_ASIDE).combine_chunks()
    asked = pc.and_not(split.is_null(), is_aside)
    names = table["name"].combine_chunks().filter(asked)
    for beside in ("[^/]*$", "^.*/"):
        said = splits_said(pc.replace_substring_regex(names, beside, ""))
        if said[:, 0].any() and said[:, 1:].any():
            break
    else:
        return table, ()
    cure = "Rename these, or give --splits=train=rest to make no splits of names."
    numbers, listed = only_split(
        said, lambda number: names[number].as_py(), field="--splits: the source", cure=cure
    )
    values = pa.array(list(KEYWORDS)).take(pa.array(numbers))
    column = pc.replace_with_mask(split, asked, values).cast(table.schema.field("split").type)
    note = f"Splits by the names of images, as Hugging Face's datasets reads them: {listed}."
    return table.set_column(table.column_names.index("split"), "split", column), (note,)


def assign_splits(
    table: pa.Table,
    splits: Splits,
    options: PrepareOptions,
    evaluations: Sequence[EvaluationSet] = (),
    progress: Progress = lambda done, total: None,
) -> SplitAssignment:
    """Assigns the images of a catalogue to splits, and leaves some out.

    `table` is of collection.SCHEMA, the parts in their order; `splits` are those of images whose
    part names none. Images of `evaluations` are left out, except from splits that the collection
    itself holds out: those that it names other than `train...`.
    """
    order = np.argsort(table["order"].to_numpy(), kind="stable")
    left_out = _set_aside(table, order)
    split = table["split"].cast(pa.string())
    in_training = pc.fill_null(pc.starts_with(split, "train"), True).to_numpy()
    # Held-out images stay as they are, so they come before those that are trained on.
    rows = _remaining_rows(order, left_out)
    rows = np.concatenate([rows[~in_training[rows]], rows[in_training[rows]]])
    drop_near = options.near_duplicates == "drop"
    drop_mirrored = options.mirrored_duplicates == "drop"
    copies = find(
        table,
        rows,
        options.near_bits,
        evaluations,
        in_training,
        without_near=drop_near,
        without_mirrored=drop_mirrored,
        progress=progress,
    )
    left_out |= {row: f"in_evaluation:{name}" for row, name in copies.evaluated.items()}
    left_out |= dict.fromkeys(copies.mirrored if drop_mirrored else (), "mirrored")
    left_out |= dict.fromkeys(copies.near if drop_near else (), "near_duplicate")
    if options.duplicates != "keep":
        left_out |= dict.fromkeys(copies.same, "duplicate")
    same = copies.same if options.duplicates == "merge" else {}
    # A held-out image gets no label of one that is trained on.
    same = {row: of for row, of in same.items() if in_training[row] == in_training[of]}
    left_out |= dict.fromkeys(same, "merged")
    merged = _merged(table, same, left_out)
    kept = _remaining_rows(order, left_out)
    remaining = set(split.take(pa.array(kept)).unique().to_pylist())
    for name in split.unique().to_pylist():
        if name not in remaining and name is not None:
            emptied = np.flatnonzero(pc.fill_null(pc.equal(split, name), False).to_numpy())
            reasons = _counts([left_out[int(row)] for row in emptied])
            raise UserError(f"Nothing is left of {name} ({reasons}): see --policy, --duplicates.")
    return SplitAssignment(
        _split(table, kept, splits, left_out, options),
        {row: tuple(weights) for row, (weights, _) in merged.items()},
        left_out,
        copies,
        {row: tuple(weights.values()) for row, (weights, given) in merged.items() if given},
    )


def weighted(table: pa.Table, assignment: SplitAssignment) -> bool:
    given = pc.greater(pc.list_value_length(table["weights"]), 0).to_numpy()
    return bool(assignment.weights) or any(given[rows].any() for rows in assignment.splits.values())


def _remaining_rows(rows: np.ndarray, left_out: Mapping[int, str]) -> np.ndarray:
    return rows[~np.isin(rows, np.fromiter(left_out, np.int64, len(left_out)))]


def _set_aside(table: pa.Table, order: np.ndarray) -> dict[int, str]:
    """Rows whose action is to be set aside, and rows with the name of an earlier one."""
    rows = np.flatnonzero(pc.equal(table["action"].cast(pa.string()), SET_ASIDE).to_numpy())
    left_out = {int(row): table["faults"][int(row)].as_py()[-1] for row in rows}
    # Equal names have equal hashes: only neighbours in the order can have the same one.
    hashes = table["order"].to_numpy()[order]
    names = table["name"]
    for place in (np.flatnonzero(hashes[1:] == hashes[:-1]) + 1).tolist():
        before, row = int(order[place - 1]), int(order[place])
        if names[before].as_py() == names[row].as_py():
            left_out.setdefault(row, "same_name")
    return left_out


def _merged(
    table: pa.Table, same: dict[int, int], left_out: dict[int, str]
) -> dict[int, tuple[dict[int, float], bool]]:
    """Row that stays for others -> (label -> largest weight, else 1; whether any were given)."""
    rows: dict[int, list[int]] = {}
    for row, first in same.items():
        if first not in left_out:
            rows.setdefault(first, [first]).append(row)
    merged = {}
    for first, of in rows.items():
        weights: dict[int, float] = {}
        given = False
        for row in of:
            labels, own = table["labels"][row].as_py(), table["weights"][row].as_py()
            given |= bool(own)
            for label, weight in zip(labels, own or [1.0] * len(labels), strict=True):
                weights[label] = max(weights.get(label, 0.0), weight)
        merged[first] = dict(sorted(weights.items())), given
    return merged


def _counts(reasons: Iterable[str]) -> str:
    return "; ".join(
        f"{number:,} {reason}" + (f": {FAULTS[reason].description}" if reason in FAULTS else "")
        for reason, number in Counter(reasons).most_common()
    )


def _split(
    table: pa.Table,
    kept: np.ndarray,
    splits: Splits,
    left_out: dict[int, str],
    options: PrepareOptions,
) -> dict[str, np.ndarray]:
    column = table["split"].cast(pa.string()).combine_chunks()
    named = column.is_valid().to_numpy(zero_copy_only=False)[kept]
    rows: dict[str, np.ndarray] = {}
    if named.any():
        names = column.to_numpy(zero_copy_only=False)[kept]
        rows = {str(name): kept[names == name] for name in sorted(set(names[named]))}
    free = kept[~named]
    are_named = bool(rows) and not len(free)
    if (are_named and options.splits) or (options.stratify and (are_named or len(splits) == 1)):
        rule = "has nothing to split off: see --splits=validation=500,train=rest."
        if are_named:
            rule = f"has no image to split: the collection has {', '.join(rows)} alone."
        raise UserError(rule, field="--splits" if options.splits else "--stratify")
    if are_named:
        return rows
    taken = sum(number or 0 for _, number in splits)
    if len(free) <= taken:
        wanted = ",".join(f"{name}={number or REST}" for name, number in splits)
        reasons = _counts(left_out.values())
        rule = f"cannot be made of the {len(free):,} images that are left ({reasons or 'of none'})."
        raise UserError(rule, field="--splits", value=wanted)
    if options.stratify:
        labels = pc.list_element(table["labels"].take(pa.array(free)), 0).to_numpy()
        places = stratified(labels, splits)
    else:
        places = splits.places(len(free))
    for name, at in places.items():
        rows[name] = np.concatenate([rows.get(name, kept[:0]), free[at]])
    return rows


def shard_ends(nbytes: np.ndarray, shard_bytes: int) -> list[int]:
    count = min(max(1, round(float(nbytes.sum()) / shard_bytes)), len(nbytes))
    return [len(nbytes) * (i + 1) // count for i in range(count)]


def example_rows(table: pa.Table, rows: np.ndarray, assignment: SplitAssignment) -> list[ImageRow]:
    """The images at `rows` with the labels of their examples, and all that writing them needs."""
    columns = ["name", "path", "offset", "nbytes", "labels", "weights", "action", "sha256"]
    images = []
    for row, image in zip(rows.tolist(), rows_at(table, columns, rows), strict=True):
        image["labels"] = assignment.labels.get(row, tuple(image["labels"]))
        image["weights"] = assignment.weights.get(row, tuple(image["weights"]))
        images.append(ImageRow(**image))
    return images


def label_index_of(
    table: pa.Table, rows: np.ndarray, labels: Mapping[int, Labels]
) -> label_index.Labels:
    """The labels of rows, in that order; those of `labels` come before the catalogue's."""
    own = pa.concat_arrays(table["labels"].take(pa.array(rows)).chunks)
    if labels:
        merged = [labels.get(int(row)) for row in rows]
        lists = zip(merged, own.to_pylist(), strict=True)
        return label_index.collect([one or each for one, each in lists])
    offsets = own.offsets.to_numpy().astype(np.int64)
    values = own.values.to_numpy()[offsets[0] : offsets[-1]]
    return label_index.Labels(offsets - offsets[0], values.astype(np.int32))
