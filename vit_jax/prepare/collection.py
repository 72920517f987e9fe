"""The description of a collection, known before any image is read."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from vit_jax.core.errors import UserError
from vit_jax.prepare.catalogue import Labels

if TYPE_CHECKING:
    from vit_jax.prepare.readers.labels import Reading

MOST_CLASSES = 4_000_000  # their names are held in memory, and their counts in the report
IMAGES_PER_PART = 1000  # in folders


@dataclasses.dataclass(frozen=True)
class CollectionRequest:
    """The flags that a collection is made from; each collection reads those that concern it.

    Attributes:
      source: a file or a folder; for lists and WebDataset's tars also as in source_files.py.
      label_order: "released" or "archive", for ImageNet-21k.
      classes: a file with the names of the classes, one per line, for lists and WebDataset's tars.
      num_classes: instead of `classes`, where labels are numbers.
      label_field: the field of their entries that holds the labels.
      multi_label: whether their images have lists of labels; None: the default of the collection.
      images_root: the folder that paths in lists are relative to and must not leave; None: the
        folder of the list.
    """

    source: str
    label_order: str = "released"
    classes: str | None = None
    num_classes: int | None = None
    label_field: str | None = None
    multi_label: bool | None = None
    images_root: str | None = None


# The repr of a part is hashed into the fingerprint of a data set: names of classes and fields stay.
@dataclasses.dataclass(frozen=True)
class Part:
    """A piece of a collection that is read from its beginning to its end.

    Attributes:
      name: readable, and unique in the collection: "n01440764.tar".
      reader: a key of read_part.READERS.
      path: of the file or the folder.
      offset, nbytes: the piece of the file; nbytes=None: up to its end. For Parquet, `offset` is
        the index of the row group.
      files: names below the folder `path`, for a part of a folder.
      split: of its images; None: assigned by their order.
      labels: of all its images, or of each image by its name.
      reading: how entries of lists and samples state their labels.
    """

    name: str
    reader: str
    path: str
    offset: int = 0
    nbytes: int | None = None
    files: tuple[str, ...] = ()
    split: str | None = None
    labels: Labels | Mapping[str, Labels] = ()
    reading: Reading | None = None


@dataclasses.dataclass(frozen=True)
class Collection:
    """Raw images that become a data set.

    Attributes:
      name: of the data set; lower case and underscores.
      class_names: unique; the index of a name is its label.
      splits: of images whose part names none, as splits.Splits.
      policy: actions for faults that differ from the defaults in faults.FAULTS.
      multi_label: whether examples have lists of labels.
      notes: sentences about the collection, for the report.
    """

    name: str
    description: str
    class_names: Sequence[str]
    parts: Sequence[Part]
    splits: str = "train=rest"
    policy: Mapping[str, str] = dataclasses.field(default_factory=dict)
    multi_label: bool = False
    notes: Sequence[str] = ()


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
