"""What was found in a collection: a row for each image, as Parquet files, one for each part."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from vit_jax.core.files.atomic import atomic_file

NAME = "catalogue.parquet"  # beside a data set
_WORD = pa.dictionary(pa.int32(), pa.string())
SCHEMA = pa.schema(
    [
        ("name", pa.string()),
        ("order", pa.uint64()),
        ("split", _WORD),
        ("labels", pa.list_(pa.int32())),
        ("weights", pa.list_(pa.float32())),
        ("path", _WORD),
        ("offset", pa.int64()),
        ("nbytes", pa.int64()),
        ("faults", pa.list_(_WORD)),
        ("action", _WORD),
        ("height", pa.int32()),
        ("width", pa.int32()),
        ("format", _WORD),
        ("sha256", pa.binary(32)),
        ("look", pa.uint64()),
        ("mirrored", pa.uint64()),
    ]
)


class Row(NamedTuple):
    """An image.

    Attributes:
      name: unique in the collection.
      order: see `order`.
      split: None: by its order.
      path, offset, nbytes: where the bytes lie that are to be stored.
      faults, action, height, width, format, sha256, look, mirrored: as checking.Checked.
    """

    name: str
    order: int
    split: str | None
    labels: Sequence[int]
    weights: Sequence[float]
    path: str
    offset: int
    nbytes: int
    faults: Sequence[str]
    action: str
    height: int
    width: int
    format: str
    sha256: bytes
    look: int | None
    mirrored: int | None


def order(name: str) -> int:
    """64 bits that put images into an order without a pattern, the same for everyone."""
    return int.from_bytes(hashlib.sha256(name.encode(errors="surrogateescape")).digest()[:8], "big")


def write(path: Path, rows: Iterable[Row]) -> None:
    """A file that is there in full or not at all."""
    columns = list(zip(*rows, strict=True)) or [()] * len(SCHEMA)
    table = pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)],
        schema=SCHEMA,
    )
    with atomic_file(path) as written:
        pq.write_table(table, written, compression="zstd")


def read(paths: Sequence[Path]) -> pa.Table:
    """All of them, one after the other."""
    tables = [pq.read_table(path, schema=SCHEMA, memory_map=True) for path in paths]
    return pa.concat_tables(tables).unify_dictionaries().combine_chunks()
