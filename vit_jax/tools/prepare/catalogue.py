"""The catalogue of a collection: one row per image, in Parquet files of one part each."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from vit_jax.core.files import atomic_file

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

Labels = tuple[int, ...]


class Location(NamedTuple):
    """Bytes in a file that can be read again; the default is nowhere."""

    path: str = ""
    offset: int = 0
    nbytes: int = 0


class ImageRow(NamedTuple):
    """All that is known of an image, on its way from the reader to the shard.

    A reader fills in the name, the location and the labels; check_image adds the rest.
    """

    name: str  # unique in the collection and the same for everyone, since it decides the order
    path: str = ""  # this and the next two: of the bytes to store, see Location
    offset: int = 0
    nbytes: int = 0
    labels: Labels | None = None  # None in a row that leaves them to its part
    weights: tuple[float, ...] = ()  # of the labels; () if none are given
    split: str | None = None  # named by the collection; None: assigned by the order of the images
    faults: tuple[str, ...] = ()  # names in faults.FAULTS
    action: str = ""  # the strictest that the policy has for these faults
    height: int = 0  # in pixels as stored, like the width; 0 if unknown
    width: int = 0
    format: str = ""  # as Pillow names it, such as "JPEG"; "" if unknown
    sha256: bytes = bytes(32)  # of the image's bytes in the collection
    # Perceptual hashes of the image and of its mirror image; None: not decoded, or no contrast.
    look: int | None = None
    mirrored: int | None = None

    def located(self, location: Location) -> ImageRow:
        """The row with another location."""
        return self._replace(**location._asdict())


# What readers yield; the bytes are None if the row's fault forbids to read them.
RowAndBytes = tuple[ImageRow, bytes | None]


def order(name: str) -> int:
    """64 bits that put images into an order without a pattern, the same for everyone."""
    return int.from_bytes(hashlib.sha256(name.encode(errors="surrogateescape")).digest()[:8], "big")


def write(path: Path, rows: Sequence[ImageRow]) -> None:
    """Writes a complete file or none."""
    columns = {name: [getattr(row, name) for row in rows] for name in ImageRow._fields}
    columns["order"] = [order(row.name) for row in rows]
    with atomic_file(path) as temporary:
        table = pa.Table.from_pydict(columns, schema=SCHEMA)
        pq.write_table(table, temporary, compression="zstd")


def read(paths: Sequence[Path]) -> pa.Table:
    """The rows of all files, one after the other."""
    tables = [pq.read_table(path, schema=SCHEMA, memory_map=True) for path in paths]
    return pa.concat_tables(tables).unify_dictionaries().combine_chunks()
