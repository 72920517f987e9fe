"""Lists as Parquet files; a group of rows is a part."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from vit_jax.core.errors import UserError
from vit_jax.prepare.entry import Part
from vit_jax.prepare.readers.labels import Reading
from vit_jax.prepare.readers.source_files import SourceFile

ROWS_AT_ONCE = 16
_ERRORS = (OSError, pa.ArrowException, MemoryError)


def parts(file: SourceFile, reading: Reading) -> list[Part]:
    """A part for each group of rows. UserError if the file is damaged or lacks columns."""
    path = str(file.path)
    try:
        with pq.ParquetFile(path) as opened:
            names, groups = opened.schema_arrow.names, opened.num_row_groups
    except _ERRORS as error:
        raise _damaged(path, error) from error
    for name in ("image", reading.label_field):
        if name not in names:
            raise UserError(
                f"{path} has no column {name!r}; it has {', '.join(map(repr, names[:20]))}. The "
                "columns are image, labels (or --label_field), and weights and id if you like."
            )
    return [
        Part(f"{file.name}@{k}", "parquet", path, offset=k, split=file.split, reading=reading)
        for k in range(groups)
    ]


def entries(part: Part) -> Iterator[tuple[str, object]]:
    """(its place in the file, a row as Python's objects; None for one that is not text)."""
    assert part.reading is not None
    wanted = ("image", part.reading.label_field, "weights", "id")
    row = 0
    try:
        with pq.ParquetFile(part.path) as file:
            columns = [name for name in wanted if name in file.schema_arrow.names]
            for batch in file.iter_batches(ROWS_AT_ONCE, row_groups=[part.offset], columns=columns):
                for k in range(len(batch)):
                    yield f"{part.name}.{row}", _entry(batch, k)
                    row += 1
    except _ERRORS as error:
        raise _damaged(part.path, error) from error


def _entry(batch: pa.RecordBatch, row: int) -> object:
    try:
        return batch.slice(row, 1).to_pylist()[0]
    except UnicodeDecodeError:
        return None


def _damaged(path: str, error: BaseException) -> UserError:
    return UserError(f"{path} is no Parquet file, or it is damaged ({error}). Get it again.")
