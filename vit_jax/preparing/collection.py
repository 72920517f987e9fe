"""What is known of a collection before any image is read."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from vit_jax.preparing.entry import Part


@dataclasses.dataclass(frozen=True)
class Request:
    """What is asked for; each collection looks at what concerns it.

    Attributes:
      source: a file or a folder.
      label_order: "released" or "archive", of ImageNet-21k.
    """

    source: str
    label_order: str = "released"


@dataclasses.dataclass(frozen=True)
class Collection:
    """What becomes a data set.

    Attributes:
      name: of the data set; lower case and underscores.
      class_names: unique; the index of one is its label.
      splits: of images whose part names none, as arrangement.Splits.
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
