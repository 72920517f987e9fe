"""What a page is made of: pictures with a few words, in sections."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Picture(NamedTuple):
    """A picture.

    Attributes:
      name: of its file, without the ending.
      title: what it shows, in a few words.
      note: how to read it, in a sentence or two.
      data: the file's bytes.
      ending: of the file: png, gif or webp.
      wide: whether it takes the page's whole width.
    """

    name: str
    title: str
    note: str
    data: bytes
    ending: str = "png"
    wide: bool = False


class Section(NamedTuple):
    """Pictures about one thing; `said` is what there is to say beside them, or instead."""

    title: str
    pictures: Sequence[Picture]
    said: str = ""


class Findings(NamedTuple):
    """A section, and the numbers behind it by what they are."""

    section: Section
    numbers: Mapping[str, float]
