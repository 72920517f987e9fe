"""What is known of a collection before any image is read."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from vit_jax.core.errors import UserError
from vit_jax.prepare.entry import Part, is_text


@dataclasses.dataclass(frozen=True)
class Request:
    """What is asked for; each collection looks at what concerns it.

    Attributes:
      source: a file or a folder; of lists and WebDataset's tars also as source_files.py says.
      label_order: "released" or "archive", of ImageNet-21k.
      classes: a file with the names of the classes, one in a line, of lists and WebDataset's tars.
      num_classes: instead of it, where labels are numbers.
      label_field: of their entries.
      multi_label: whether an image of them has a list of labels; None: as is usual for them.
      images_root: the folder that paths in lists are relative to, and must not leave; None: the
        list's.
    """

    source: str
    label_order: str = "released"
    classes: str | None = None
    num_classes: int | None = None
    label_field: str | None = None
    multi_label: bool | None = None
    images_root: str | None = None


MOST_CLASSES = 4_000_000  # their names are held in memory, and their counts in the report


def refuse_names(names: Sequence[str]) -> None:
    """UserError if names of classes would not be read back as they are from a list of lines.

    TFDS keeps them so, one in a line, and strips the lines: names would shift or become the same.
    """
    if len(names) > MOST_CLASSES:
        raise UserError(f"{len(names):,} classes: at most {MOST_CLASSES:,} are possible.")
    for label, name in enumerate(names):
        if name.strip() != name or name.splitlines() != [name] or not is_text(name):
            raise UserError(
                f"The name of class {label} is {name!r}: it must be UTF-8 text in one line, not "
                "empty and not with spaces at its ends, since the data set keeps names as lines of "
                "a file. Rename it."
            )


@dataclasses.dataclass(frozen=True)
class Collection:
    """What becomes a data set.

    Attributes:
      name: of the data set; lower case and underscores.
      class_names: unique; the index of one is its label.
      splits: of images whose part names none, as splits.Splits.
      policy: actions for faults that differ from those of faults.FAULTS.
      multi_label: whether examples have lists of labels.
      notes: sentences about what was found, for the report.
    """

    name: str
    description: str
    class_names: Sequence[str]
    parts: Sequence[Part]
    splits: str = "train=rest"
    policy: Mapping[str, str] = dataclasses.field(default_factory=dict)
    multi_label: bool = False
    notes: Sequence[str] = ()
