"""The description of a collection, known before any image is read; what flags ask for."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from vit_jax.core.errors import UserError
from vit_jax.tools.prepare.catalogue import Labels
from vit_jax.tools.prepare.duplicates import NEAR_BITS
from vit_jax.tools.prepare.near_pairs import MOST_BITS

if TYPE_CHECKING:
    from vit_jax.tools.prepare.readers.labels import Reading

MOST_CLASSES = 4_000_000  # their names are held in memory, and their counts in the report
IMAGES_PER_PART = 1000  # in folders


@dataclasses.dataclass(frozen=True)
class CollectionRequest:
    """The flags that a collection is made from; each collection reads those that concern it."""

    source: str  # a file or a folder; for lists and WebDataset's tars also as in source_files.py
    label_order: str = "released"  # or "archive", for ImageNet-21k
    # For lists and WebDataset's tars: a file with the names of the classes, one per line, or where
    # labels are numbers, how many; the field of entries that holds the labels; whether these are
    # lists (None: the default of the collection); and the folder that paths in lists are relative
    # to and must not leave (None: that of the list).
    classes: str | None = None
    num_classes: int | None = None
    label_field: str | None = None
    multi_label: bool | None = None
    images_root: str | None = None
    image_field: str | None = None  # of a CSV; None: the one with a usual name


# The repr of a part is hashed into the fingerprint of a data set: names of classes and fields stay.
@dataclasses.dataclass(frozen=True)
class Part:
    """A piece of a collection that is read from its beginning to its end."""

    name: str  # readable, and unique in the collection: "n01440764.tar"
    reader: str  # a key of read_part.READERS
    path: str  # of the file or the folder
    offset: int = 0  # of the piece in the file; for Parquet, the index of the row group
    nbytes: int | None = None  # of the piece; None: up to the end of the file
    files: tuple[str, ...] = ()  # names below the folder `path`, for a part of a folder
    split: str | None = None  # of its images; None: assigned by their order
    labels: Labels | Mapping[str, Labels] = ()  # of all its images, or of each by its name
    reading: Reading | None = None  # how entries of lists and samples state their labels


@dataclasses.dataclass(frozen=True)
class Collection:
    """Raw images that become a data set."""

    name: str  # of the data set; lower case and underscores
    description: str
    class_names: Sequence[str]  # unique; the index of a name is its label
    parts: Sequence[Part]
    splits: str = "train=rest"  # of images whose part names none, as split_assignment.Splits
    # Actions for faults that differ from the defaults in faults.FAULTS.
    policy: Mapping[str, str] = dataclasses.field(default_factory=dict)
    multi_label: bool = False  # whether examples have lists of labels
    notes: Sequence[str] = ()  # sentences about the collection, for the report


def refuse_names(names: Sequence[str]) -> None:
    """UserError if class names would not be read back unchanged from a list of lines.

    TFDS keeps them so, one per line, and strips the lines: names would shift or coincide.
    """
    if len(names) > MOST_CLASSES:
        raise UserError(f"{len(names):,} classes: at most {MOST_CLASSES:,} are possible.")
    for label, name in enumerate(names):
        if not is_line(name):
            raise UserError(
                f"The name of class {label} is {name!r}: it must be UTF-8 text in one line, not "
                "empty and not with spaces at its ends, since the data set keeps names as lines of "
                "a file. Rename it."
            )


def is_text(name: str) -> bool:
    """Whether a name can be encoded as UTF-8; names from the operating system may not."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_line(name: str) -> bool:
    """Whether a name is UTF-8 text in one line, not empty and without spaces at its ends."""
    return is_text(name) and name.strip() == name and name.splitlines() == [name]


VERSION = r"(0|[1-9][0-9]*)(\.(0|[1-9][0-9]*)){2}"  # what TFDS can read
LEAST_SHARD_MIB, MOST_SHARD_MIB = 0.001, 2**20


@dataclasses.dataclass(frozen=True)
class PrepareOptions:
    """All that the data set depends on besides the collection."""

    version: str = "1.0.0"  # three numbers, which end the path of the data set's folder
    splits: str = ""  # see split_assignment.Splits; "": those of the collection
    stratify: bool = False  # see split_assignment.stratified; of several labels the first counts
    policy: tuple[str, ...] = ()  # see faults.policy
    # Images with exactly the bytes of an earlier one: "merge" gives their labels to the first one.
    duplicates: str = "keep"  # or "drop", "merge"
    near_duplicates: str = "report"  # or "drop": images that look like an earlier one
    mirrored_duplicates: str = "report"  # or "drop": that look like an earlier one's mirror image
    near_bits: int = NEAR_BITS  # see duplicates.find
    drop_duplicates_of: tuple[str, ...] = ()  # evaluation sets, see evaluation_sets.load
    max_image_pixels: int = 100_000_000  # larger images are set aside
    shard_mib: float = 256  # approximate size of a file

    def refuse_impossible(self) -> None:
        """UserError for values out of range; splits and policy are checked where they are read."""
        if not re.fullmatch(VERSION, self.version):
            raise UserError(f"--version={self.version}: three numbers, as in 1.0.0.")
        if not LEAST_SHARD_MIB <= self.shard_mib <= MOST_SHARD_MIB:  # nor NaN
            raise UserError(
                f"--shard_mib={self.shard_mib:g}: from {LEAST_SHARD_MIB:g} to {MOST_SHARD_MIB:,} "
                "are possible; 256 is usual."
            )
        if not 0 <= self.near_bits <= MOST_BITS:
            raise UserError(f"--near_bits={self.near_bits}: from 0 to {MOST_BITS} are possible.")
        if self.max_image_pixels < 1:
            raise UserError(f"--max_image_pixels={self.max_image_pixels}: at least 1.")
