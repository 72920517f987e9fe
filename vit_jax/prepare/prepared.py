"""A data set that is ready, and the files beside its records that say what it is.

`prepared.json` has its content hash, options and versions; `catalogue.parquet` a row for each image
of the collection, with the split and example that it became, or why it was left out.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vit_jax.core.errors import UserError
from vit_jax.core.files import atomic
from vit_jax.data.sources.tfds_writer import NOTE, SplitSize
from vit_jax.prepare import catalogue
from vit_jax.prepare.arrangement import Arrangement
from vit_jax.prepare.copies.duplicates import Duplicates

# Of duplicates.Duplicates:
_COPIES = ("same", "near", "mirrored")
_COUNTS = ("by_look", "mirrored_in", "matched", "not_compared")
# Where the images lay is of no use any more; without it the file depends on the images alone.
_NOT_KEPT = ["path", "offset"]


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A data set that is ready.

    Attributes:
      table: catalogue.SCHEMA, or what of it is kept.
      digest: of names, labels and images in their order; hexadecimal.
    """

    folder: Path
    table: pa.Table
    arrangement: Arrangement
    splits: dict[str, SplitSize]
    digest: str


def write(found: Prepared, about: Mapping[str, Any]) -> None:
    """Writes both files; with the last of them the data set is ready.

    about: what else prepared.json is to say; as JSON.
    """
    table = _with_places(found.table, found.arrangement).drop_columns(_NOT_KEPT)
    with atomic.atomic_file(found.folder / catalogue.NAME) as written:
        pq.write_table(table, written, compression="zstd")
    copies = found.arrangement.copies
    text = {
        "content": found.digest,
        "splits": {name: size._asdict() for name, size in found.splits.items()},
        "copies": {name: getattr(copies, name) for name in _COUNTS},
        **about,
        "files": _sizes(found.folder),
    }
    atomic.write_text(found.folder / NOTE, json.dumps(text, indent=1) + "\n")


def about(folder: Path) -> dict[str, Any] | None:
    """What prepared.json says; None: the data set is not ready."""
    try:
        return json.loads((folder / NOTE).read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UserError(f"{folder / NOTE} is damaged ({error}). Delete {folder}.") from error


def _sizes(folder: Path) -> dict[str, int]:
    """Bytes of the set's files, but for prepared.json."""
    paths = (path for path in sorted(folder.iterdir()) if path.is_file() and path.name != NOTE)
    return {path.name: path.stat().st_size for path in paths if not path.name.startswith(".")}


def read(folder: Path) -> Prepared:
    """A data set of which there is a prepared.json. UserError if files are damaged or missing."""
    said = about(folder)
    assert said is not None
    now = _sizes(folder)
    for name, size in said.get("files", {}).items():
        if now.get(name) != size:
            found = f"{now[name]:,} bytes" if name in now else "missing"
            raise UserError(
                f"{folder / name} is {found}, and had {size:,} bytes when the set was ready. "
                f"Delete {folder / NOTE}: the same command then makes the data set again, the same "
                "bytes."
            )
    try:
        table = pq.read_table(folder / catalogue.NAME)
        splits = {name: SplitSize(**size) for name, size in said["splits"].items()}
        copies = _copies(table, said["copies"])
    except (pa.ArrowException, OSError, KeyError, TypeError) as error:
        raise UserError(
            f"{folder}: {NOTE} or {catalogue.NAME} is damaged ({error}). Delete {folder}."
        ) from error
    return Prepared(folder, table, _arrangement(table, copies), splits, said["content"])


def _with_places(table: pa.Table, arranged: Arrangement) -> pa.Table:
    """With the columns left_out, in_split, example, and rows that an image is a copy of."""
    left_out: list[str | None] = [None] * len(table)
    for row, why in arranged.left_out.items():
        left_out[row] = why
    names = list(arranged.splits)
    split, example = np.full(len(table), -1), np.full(len(table), -1)
    for number, rows in enumerate(arranged.splits.values()):
        split[rows], example[rows] = number, np.arange(len(rows))
    in_split = pa.DictionaryArray.from_arrays(
        pa.array(split.astype(np.int32), mask=split < 0), pa.array(names, pa.string())
    )
    columns = {
        "left_out": pa.array(left_out, pa.string()).dictionary_encode(),
        "in_split": in_split,
        "example": pa.array(example, mask=example < 0),
        **{f"{kind}_as": _rows(getattr(arranged.copies, kind), len(table)) for kind in _COPIES},
    }
    for name, column in columns.items():
        table = table.append_column(name, column)
    return table


def _rows(copies: dict[int, int], size: int) -> pa.Array:
    of = np.full(size, -1)
    of[list(copies)] = list(copies.values())
    return pa.array(of, mask=of < 0)


def _copies(table: pa.Table, counts: Mapping[str, Any]) -> Duplicates:
    kinds = [kind for kind in _COPIES if f"{kind}_as" in table.column_names]  # all but of old sets
    found = [_valid(table, f"{kind}_as") for kind in kinds]
    copies = [dict(zip(rows.tolist(), of.to_pylist(), strict=True)) for rows, of in found]
    rows, why = _valid(table, "left_out")
    evaluated = {
        row: name.partition(":")[2]
        for row, name in zip(rows.tolist(), why.to_pylist(), strict=True)
        if name.startswith("in_evaluation:")
    }
    told: dict[str, Any] = dict(zip(kinds, copies, strict=True)) | dict(counts)
    return Duplicates(evaluated=evaluated, **told)


def _arrangement(table: pa.Table, copies: Duplicates) -> Arrangement:
    rows, why = _valid(table, "left_out")
    left_out = dict(zip(rows.tolist(), why.to_pylist(), strict=True))
    rows, split = _valid(table, "in_split")
    split = split.cast(pa.string()).combine_chunks().dictionary_encode()
    numbers, examples = split.indices.to_numpy(), table["example"].take(pa.array(rows)).to_numpy()
    splits = {}
    for number, name in enumerate(split.dictionary.to_pylist()):
        of_split = numbers == number
        splits[name] = rows[of_split][np.argsort(examples[of_split])]
    return Arrangement(splits, {}, left_out, copies)


def _valid(table: pa.Table, name: str) -> tuple[np.ndarray, pa.ChunkedArray]:
    """(rows that have a value in this column, these values)"""
    rows = np.flatnonzero(table[name].is_valid().to_numpy())
    return rows, table[name].take(pa.array(rows))
