"""A finished data set, and the files beside its records that describe it.

`prepared.json` holds its content hash, options and versions; `catalogue.parquet` a row for each
image of the collection, with the split and example that it became or the reason that it was left
out.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vit_jax.core.errors import UserError
from vit_jax.core.files import atomic_file, write_file
from vit_jax.data.sources.tfds_writer import NOTE, SplitSize
from vit_jax.store import workdir
from vit_jax.tools.prepare.collection import CATALOGUE
from vit_jax.tools.prepare.split_assignment import SplitAssignment

# Fields of duplicates.Duplicates.
_COPIES = ("same", "near", "mirrored")
_COUNTS = ("by_look", "mirrored_in", "matched", "not_compared")
# Locations are of no use any more; without them the file depends on the images alone.
_NOT_KEPT = ["path", "offset"]


@dataclasses.dataclass(frozen=True)
class PreparedSet:
    folder: Path
    splits: dict[str, SplitSize]
    digest: str  # of names, labels and images in their order; hexadecimal


@dataclasses.dataclass(frozen=True)
class WrittenSet(PreparedSet):
    table: pa.Table  # collection.SCHEMA
    assignment: SplitAssignment


def write(data_set: WrittenSet, note: Mapping[str, Any]) -> None:
    """Writes both files, prepared.json last, with the entries of `note`: the data set is ready."""
    table = _with_assignment(data_set.table, data_set.assignment).drop_columns(_NOT_KEPT)
    with atomic_file(data_set.folder / CATALOGUE) as temporary:
        pq.write_table(table, temporary, compression="zstd")
    copies = data_set.assignment.copies
    note = {
        "content": data_set.digest,
        "splits": {name: size._asdict() for name, size in data_set.splits.items()},
        "copies": {name: getattr(copies, name) for name in _COUNTS},
        **note,
        "files": _sizes(data_set.folder),
    }
    write_file(data_set.folder / NOTE, json.dumps(note, indent=1) + "\n")


def read_note(folder: Path) -> dict[str, Any] | None:
    """The contents of prepared.json; None: the data set is not ready."""
    return workdir.read_json(folder / NOTE, dict, f"Move {folder} away.")


def _sizes(folder: Path) -> dict[str, int]:
    paths = (path for path in sorted(folder.iterdir()) if path.is_file() and path.name != NOTE)
    return {path.name: path.stat().st_size for path in paths if not path.name.startswith(".")}


def read(folder: Path) -> PreparedSet:
    note = read_note(folder)
    assert note is not None
    now = _sizes(folder)
    for name, size in note.get("files", {}).items():
        if now.get(name) != size:
            rule = f"has {now.get(name, 0):,} bytes, and had {size:,} when the set was ready."
            cure = f"Move {folder / NOTE} away: the same command then makes the same bytes again."
            raise UserError(rule, field=str(folder / name), cure=cure)
    splits = {name: SplitSize(**size) for name, size in note["splits"].items()}
    return PreparedSet(folder, splits, note["content"])


def _with_assignment(table: pa.Table, assignment: SplitAssignment) -> pa.Table:
    left_out: list[str | None] = [None] * len(table)
    for row, why in assignment.left_out.items():
        left_out[row] = why
    names = list(assignment.splits)
    split, example = np.full(len(table), -1), np.full(len(table), -1)
    for number, rows in enumerate(assignment.splits.values()):
        split[rows], example[rows] = number, np.arange(len(rows))
    places = pa.array(split.astype(np.int32), mask=split < 0)
    columns = {
        "left_out": pa.array(left_out, pa.string()).dictionary_encode(),
        "in_split": pa.DictionaryArray.from_arrays(places, pa.array(names, pa.string())),
        "example": pa.array(example, mask=example < 0),
    }
    for kind in _COPIES:
        copies, of = getattr(assignment.copies, kind), np.full(len(table), -1)
        of[list(copies)] = list(copies.values())
        columns[f"{kind}_as"] = pa.array(of, mask=of < 0)
    for name, column in columns.items():
        table = table.append_column(name, column)
    return table
