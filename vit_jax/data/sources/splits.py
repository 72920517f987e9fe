"""Splits and their slices, as TFDS writes them: "train", "train[:98%]", "full[25600:51200]".

Several with "+" between them are one behind the other: "train[:800]+validation[:200]".
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from vit_jax.core.errors import UserError, nearest

ALL = "all"  # all images of a folder that has no folders of splits

_BOUNDARY = r"(-?\d+%?)?"
_SPLIT = re.compile(rf"(?P<name>[\w.-]+)(\[(?P<start>{_BOUNDARY}):(?P<stop>{_BOUNDARY})\])?")


class Slice(NamedTuple):
    """Examples [start, stop) of the split called `name`."""

    name: str
    start: int
    stop: int

    @property
    def num_examples(self) -> int:
        """The number of examples in the slice; at least 1."""
        return self.stop - self.start


def parts(split: str) -> list[str]:
    """The slices of a split: "train[:800]+test" -> ["train[:800]", "test"]."""
    return [part.strip() for part in split.split("+")]


def check_disjoint(slices: Sequence[Slice | None], split: str, *, where: str) -> None:
    """UserError if two of the slices of `split` share examples, which would then count twice."""
    known = sorted(part for part in slices if part is not None)
    for one, other in itertools.pairwise(known):
        if one.name == other.name and other.start < one.stop:
            raise UserError(
                f"{where}.split={split!r}: the slices share examples of {one.name!r}, from "
                f"{other.start:,} to {min(one.stop, other.stop):,}. Let each example be in one."
            )


def base_name(split: str, *, where: str) -> str:
    """ "train[:98%]" -> "train". UserError if `split` is not written like a split.

    `where` is the config's section that gives the split, for messages: "input", "evals.test".
    """
    return _match(split, where)["name"]


def resolve(split: str, num_examples: Mapping[str, int], *, where: str) -> Slice:
    """The slice that `split` means, given the sizes of the splits that exist.

    As in TFDS, percentages are rounded to the nearest example (so [:98%] and [98%:] share none and
    miss none) and negative boundaries count from the end. UserError if the split does not exist, or
    the slice leaves it or is empty; it names the config's section `where`.
    """
    match = _match(split, where)
    name = match["name"]
    if name not in num_examples:
        raise UserError(
            f"{where}.split={split!r}: the data set has no split {name!r}. "
            f"{nearest(name, num_examples)}"
        )
    size = num_examples[name]
    if not size:
        raise UserError(
            f"{where}.split={split!r}: {name!r} has no examples. There are "
            f"{', '.join(f'{n:,} in {k!r}' for k, n in num_examples.items())}; add some, or give "
            "another split."
        )
    start, stop = _boundary(match["start"], size, 0), _boundary(match["stop"], size, size)
    if not 0 <= start < stop <= size:
        raise UserError(
            f"{where}.split={split!r} means examples [{start}, {stop}) of the {size} in {name!r}; "
            f"a slice must hold at least one and end at {size} or before."
        )
    return Slice(name, start, stop)


def _match(split: str, where: str) -> re.Match[str]:
    match = _SPLIT.fullmatch(split)
    if match is None:
        raise UserError(
            f"{where}.split={split!r} is not a split. Write a name, or a name and one slice in "
            "examples or percent: train, train[:98%], train[51200:], full[25600:51200]. Put + "
            "between several."
        )
    return match


def _boundary(text: str | None, size: int, default: int) -> int:
    if not text:
        return default
    value = round(int(text[:-1]) * size / 100) if text.endswith("%") else int(text)
    return value + size if text.startswith("-") else value
