"""What a collection lists: images, and where their bytes lie."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from vit_jax.prepare.readers.labels import Reading

Labels = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Part:
    """A piece of a collection that is read from its beginning to its end.

    Attributes:
      name: readable, and unique in the collection: "n01440764.tar".
      reader: what reads it, in parts.READERS.
      path: of the file or the folder.
      offset, nbytes: of the piece in the file; nbytes=None: all of it. Of Parquet `offset` is the
        number of the group of rows.
      files: their names below the folder `path`, of a part of a folder.
      split: of its images; None: by their order (arrangement.py).
      labels: of all its images, or of each by its name.
      reading: of lists and samples, which say themselves what their labels are.
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


class Place(NamedTuple):
    """Bytes in a file."""

    path: str
    offset: int
    nbytes: int


class Member(NamedTuple):
    """One image of a part, or what was found in the place of one.

    Attributes:
      name: unique in the collection, the same for everyone: images are put in its order.
      data: the file's bytes; None if it must not be read, and `fault` says why.
      place: where `data` can be read again; None: nowhere, keep a copy.
      labels: classes; None: those of its part.
      weights: of the labels; (): not given.
      fault: one of faults.FAULTS, if that is known before the bytes are looked at.
    """

    name: str
    data: bytes | None
    place: Place | None
    labels: Labels | None = None
    weights: tuple[float, ...] = ()
    fault: str = ""


def is_text(name: str) -> bool:
    """Whether it has a form in UTF-8; names that the operating system gave may not."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
