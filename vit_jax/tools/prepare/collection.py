"""A collection before its images are read, what flags ask for, and the rows of its images.

A catalogue has a row for each image, in Parquet files of one part each.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vit_jax.core.errors import UserError
from vit_jax.core.files import atomic_file
from vit_jax.tools.prepare.duplicates import MOST_BITS, NEAR_BITS

MOST_CLASSES = 4_000_000  # their names are held in memory, and their counts in the report
IMAGES_PER_PART = 1000  # in folders
ROWS_AT_ONCE = 10_000
CATALOGUE = "catalogue.parquet"  # beside a data set
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


class ImageRow(NamedTuple):
    """All that is known of an image: a reader knows where it is, the check of it adds the rest."""

    name: str  # unique in the collection and the same for everyone, since it decides the order
    # Location of the bytes to store, in a file that can be read again; "" if there is none.
    path: str = ""
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

    def located(self, path: str = "", offset: int = 0, nbytes: int = 0) -> ImageRow:
        return self._replace(path=path, offset=offset, nbytes=nbytes)


# What readers yield; the bytes are None if the row's fault forbids to read them.
RowAndBytes = tuple[ImageRow, bytes | None]


def order(name: str) -> int:
    """64 bits that put images into an order without a pattern, the same for everyone."""
    return int.from_bytes(hashlib.sha256(name.encode(errors="surrogateescape")).digest()[:8], "big")


def write_catalogue(path: Path, rows: Sequence[ImageRow]) -> None:
    columns = {name: [getattr(row, name) for row in rows] for name in ImageRow._fields}
    columns["order"] = [order(row.name) for row in rows]
    with atomic_file(path) as temporary:
        table = pa.Table.from_pydict(columns, schema=SCHEMA)
        pq.write_table(table, temporary, compression="zstd")


def read_catalogues(paths: Sequence[Path]) -> pa.Table:
    tables = [pq.read_table(path, schema=SCHEMA, memory_map=True) for path in paths]
    return pa.concat_tables(tables).unify_dictionaries().combine_chunks()


def rows_at(table: pa.Table, columns: Sequence[str], rows: np.ndarray) -> Iterator[dict[str, Any]]:
    """Some columns of rows as dictionaries, made a few at a time, since these take much memory."""
    chosen = table.select(columns)
    for start in range(0, len(rows), ROWS_AT_ONCE):
        yield from chosen.take(pa.array(rows[start : start + ROWS_AT_ONCE])).to_pylist()


def _flag(
    default: Any, help: str, *choices: str, only_for: Sequence[str] = (), bounds: Any = ()
) -> Any:
    """A field that is a flag of the command, of some collections `only_for`; () for all."""
    about = {"help": help, "choices": choices, "only_for": only_for, "bounds": bounds}
    return dataclasses.field(default=default, metadata=about)


_list_flag = functools.partial(_flag, None, only_for=("records",))
_entry_flag = functools.partial(_flag, None, only_for=("records", "webdataset"))


@dataclasses.dataclass(frozen=True)
class CollectionRequest:
    """The flags that a collection is made from; each collection reads those that concern it."""

    source: str  # a file or a folder; for lists and WebDataset's tars see entries.source_files
    label_order: str = _flag(
        "released", "Order of the classes.", "released", "archive", only_for=("imagenet21k",)
    )
    classes: str | None = _entry_flag("File of class names, one per line.")
    num_classes: int | None = _entry_flag(
        "Instead of --classes, where labels are numbers.", bounds=(1, MOST_CLASSES)
    )
    label_field: str | None = _entry_flag("Field with the labels; webdataset: of the .json.")
    multi_label: bool | None = _entry_flag("Labels are lists; default: for records only.")
    images_root: str | None = _list_flag("Folder that paths are relative to; default: the list's.")
    image_field: str | None = _list_flag("Field or column with the images, or their files.")
    split_field: str | None = _list_flag("Column with the splits of images, for a CSV.")
    label_separator: str | None = _list_flag("Between labels of an image, for a CSV: such as |.")


# The repr of a part is hashed into the fingerprint of a data set: names of classes and fields stay.
@dataclasses.dataclass(frozen=True)
class Part:
    """A piece of a collection that is read from its beginning to its end."""

    name: str  # readable, and unique in the collection: "n01440764.tar"
    reader: str  # a key of tasks.READERS
    path: str  # of the file or the folder
    offset: int = 0  # of the piece in the file; for Parquet, the index of the row group
    nbytes: int | None = None  # of the piece; None: up to the end of the file
    files: tuple[str, ...] = ()  # names below the folder `path`, for a part of a folder
    split: str | None = None  # of its images; None: assigned by their order
    labels: Labels | Mapping[str, Labels] = ()  # of all its images, or of each by its name
    reading: Any = None  # an entries.Reading: how entries of lists and samples state their labels


@dataclasses.dataclass(frozen=True)
class Collection:
    name: str  # of the data set; lower case and underscores
    description: str
    class_names: Sequence[str]  # unique; the index of a name is its label
    parts: Sequence[Part]
    splits: str = "train=rest"  # of images whose part names none, as split_assignment.Splits
    # Actions for faults that differ from the defaults in faults.FAULTS.
    policy: Mapping[str, str] = dataclasses.field(default_factory=dict)
    multi_label: bool = False  # whether examples have lists of labels
    notes: Sequence[str] = ()  # sentences about the collection, for the report


def refuse_source(source: object, rule: str, cure: str = "") -> NoReturn:
    raise UserError(rule, field="--source", value=source, cure=cure)


def check_class_names(names: Sequence[str]) -> None:
    """UserError for names that TFDS, which strips the lines of a list, would not read unchanged."""
    if len(names) > MOST_CLASSES:
        raise UserError(f"{len(names):,} classes: at most {MOST_CLASSES:,} are possible.")
    for label, name in enumerate(names):
        if not is_line(name):
            raise UserError(f"Class {label} is called {name!r}: give it one line of UTF-8 text.")


def is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_line(name: str) -> bool:
    """Returns whether a name is a line of UTF-8 text, without spaces at its ends."""
    return is_text(name) and name.strip() == name and name.splitlines() == [name]


VERSION = r"(0|[1-9][0-9]*)(\.(0|[1-9][0-9]*)){2}"  # what TFDS can read


@dataclasses.dataclass(frozen=True)
class PrepareOptions:
    version: str = _flag("1.0.0", "Version of the data set: three numbers.")
    # See split_assignment.Splits and .stratified.
    splits: str = _flag("", "As test=25600,train=rest; default: those of the collection.")
    stratify: bool = _flag(False, "Split each class of --splits in proportion.")
    policy: tuple[str, ...] = _flag((), "Action for a fault, as gray:set_aside. May be repeated.")
    duplicates: str = _flag(
        "keep", "Copies with equal bytes; merge: one has all labels.", "keep", "drop", "merge"
    )
    near_duplicates: str = _flag("report", "Copies that look alike.", "report", "drop")
    mirrored_duplicates: str = _flag(
        "report", "Copies that look alike when mirrored.", "report", "drop"
    )
    near_bits: int = _flag(
        NEAR_BITS, "Most bits, of 64, in which perceptual hashes of near duplicates differ.",
        bounds=(0, MOST_BITS),
    )  # fmt: skip
    drop_duplicates_of: tuple[str, ...] = _flag(
        (),
        "An evaluation set whose images are left out: DATA_SET:SPLIT, a folder of images, or a "
        "Parquet file of hashes. May be repeated.",
    )
    max_image_pixels: int = _flag(100_000_000, "Larger images are set aside.", bounds=(1, 2**62))
    shard_mib: float = _flag(256, "Approximate size of a file.", bounds=(0.001, 2**20))

    def __post_init__(self) -> None:
        if not re.fullmatch(VERSION, self.version):
            rule = "is not three numbers, as 1.0.0."
            raise UserError(rule, field="--version", value=self.version)
