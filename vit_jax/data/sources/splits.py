"""Splits and their slices, as TFDS writes them: "train", "train[:98%]", "full[25600:51200]".

https://www.tensorflow.org/datasets/splits. A slice that TFDS reads otherwise than its text shows,
such as "train[60:66%]" or "train[:-0]", is refused. Several with "+" between them are one behind
the other.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, NoReturn

from vit_jax.core.errors import UnknownSplit, UserError, nearest

ALL = "all"  # all images of a folder that has no folders of splits

_BOUNDARY = r"-?\d+(\.\d+(?=%))?(%|shard)?"
_SPLIT = re.compile(
    rf"(?P<name>[\w.-]+)(\[(?!:\])"
    rf"((?P<start>{_BOUNDARY})?:(?P<stop>{_BOUNDARY})?|(?P<shard>-?\d+)shard)\])?"
)


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
    known = [part for part in slices if part is not None]
    for one, other in itertools.combinations(known, 2):
        if overlap([one], [other]):
            _refuse(where, split, f"has examples of {other.name!r} twice.")


def overlap(slices: Sequence[Slice], others: Sequence[Slice]) -> bool:
    """Tells whether slices of one data set share examples with others of it."""
    return any(
        (a.name == b.name and a.start < b.stop and b.start < a.stop)
        or (a.name != b.name and ALL in (a.name, b.name))
        for a in slices
        for b in others
    )


def base_name(split: str, *, where: str) -> str:
    """ "train[:98%]" -> "train". UserError if `split` is not written like a split."""
    return _match(split, where)["name"]


def resolve(
    split: str,
    num_examples: Mapping[str, int],
    *,
    where: str,
    shard_lengths: Mapping[str, Sequence[int]] | None = None,
) -> Slice:
    """The slice that `split` means, given the sizes of the splits that exist.

    As in TFDS, percentages are rounded to the nearest example (so [:98%] and [98%:] share none and
    miss none), negative boundaries count from the end, and shards are files, of `shard_lengths`
    examples. `where`: the config's section.
    """
    match = _match(split, where)
    name = match["name"]
    if name not in num_examples:
        hint = nearest(name, num_examples)
        if where.startswith("evals.") and len(num_examples) == 1:
            (one,) = num_examples
            hint += f" Hold out a part: input.split='{one}[:90%]' and {where}.split='{one}[90%:]'."
        rule = f"is not there: the data set has no split {name!r}. {hint}"
        raise UnknownSplit(rule, field=f"{where}.split", value=repr(split))
    start, stop = match["start"], match["stop"]
    if match["shard"] is not None:
        start = match["shard"] + "shard"
        stop = None if match["shard"] == "-1" else f"{int(match['shard']) + 1}shard"
    units = {text.lstrip("-.0123456789") for text in (start, stop) if text is not None} or {""}
    if len(units) > 1 or ("shard" in units and shard_lengths is None):
        rule = "has two units, unlike train[60%:66%], or shards where there are no record files."
        _refuse(where, split, rule)
    (unit,) = units
    size = num_examples[name]
    ends = [0, *itertools.accumulate((shard_lengths or {}).get(name, ()))]
    total = len(ends) - 1 if unit == "shard" else size
    first = 0 if start is None else _from_the_start(start, unit, total)
    last = total if stop is None else _from_the_start(stop, unit, total)
    if first is None or last is None or not 0 <= first < last <= total:
        what = "shards" if unit == "shard" else "examples"
        rule = f"means {what} [{first}, {last}) of the {total} in {name!r}"
        rule += ", but -0 from the end is nothing" if None in (first, last) else ""
        _refuse(
            where, split, f"{rule}; a slice must hold at least one and end at {total} or before."
        )
    return Slice(name, ends[first], ends[last]) if unit == "shard" else Slice(name, first, last)


def _from_the_start(text: str, unit: str, total: int) -> int | None:
    """The boundary that a text means, counted from the start; None for -0."""
    number = text.removesuffix(unit)
    boundary = round(float(number) * total / 100) if unit == "%" else int(number)
    if number.startswith("-"):
        return boundary + total if boundary else None
    return boundary


def _match(split: str, where: str) -> re.Match[str]:
    match = _SPLIT.fullmatch(split)
    if match is None:
        _refuse(where, split, "is not a split, such as train or train[:98%].")
    return match


def _refuse(where: str, split: str, rule: str) -> NoReturn:
    raise UserError(rule, field=f"{where}.split", value=repr(split))
