"""Splits and their slices, as TFDS writes them: "train", "train[:98%]", "full[25600:51200]".

https://www.tensorflow.org/datasets/splits. A slice that TFDS reads in a way that its text does not
show, such as "train[60:66%]" (both in percent) or "train[:-0]" (nothing), is refused.

Several with "+" between them are one behind the other: "train[:800]+validation[:200]".
"""

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

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
    known = sorted(part for part in slices if part is not None)
    for one, other in itertools.pairwise(known):
        if one.name == other.name and other.start < one.stop:
            raise UserError(
                f"{where}.split={split!r}: the slices share examples of {one.name!r}, from "
                f"{other.start:,} to {min(one.stop, other.stop):,}. Let each example be in one."
            )
    names = {part.name for part in known}
    if ALL in names and len(names) > 1:
        raise UserError(
            f"{where}.split={split!r}: {ALL!r} has the examples of {min(names - {ALL})!r}, too. "
            "Let each example be in one."
        )


def overlap(slices: Sequence[Slice], others: Sequence[Slice]) -> bool:
    """Tells whether slices of one data set share examples with others of it."""
    return any(
        (a.name == b.name and a.start < b.stop and b.start < a.stop)
        or (a.name != b.name and ALL in (a.name, b.name))
        for a in slices
        for b in others
    )


def base_name(split: str, *, where: str) -> str:
    """ "train[:98%]" -> "train". UserError if `split` is not written like a split.

    `where` is the config's section that gives the split, for messages: "input", "evals.test".
    """
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
    examples. UnknownSplit if the split does not exist, UserError if the slice leaves it or is
    empty; they name the config's section `where`.
    """
    match = _match(split, where)
    name = match["name"]
    if name not in num_examples:
        hint = nearest(name, num_examples)
        if where.startswith("evals.") and len(num_examples) == 1:
            (one,) = num_examples
            hint += f" Hold out a part: input.split='{one}[:90%]' and {where}.split='{one}[90%:]'."
        raise UnknownSplit(f"{where}.split={split!r}: the data set has no split {name!r}. {hint}")
    size = num_examples[name]
    if not size:
        raise UserError(
            f"{where}.split={split!r}: {name!r} has no examples. There are "
            f"{', '.join(f'{n:,} in {k!r}' for k, n in num_examples.items())}; add some, or give "
            "another split."
        )
    unit, texts = _unit(match, split, where)
    if unit == "shard" and shard_lengths is None:
        raise UserError(
            f"{where}.split={split!r}: shards are record files, which this data set is not in. "
            "Write the slice in examples or percent."
        )
    ends = [0, *itertools.accumulate((shard_lengths or {}).get(name, ()))]
    units: dict[str, tuple[int, Callable[[str], int]]] = {
        "": (size, int),
        "%": (size, lambda text: round(float(text) * size / 100)),
        "shard": (len(ends) - 1, int),
    }
    total, scale = units[unit]
    start, stop = (
        default if text is None else _from_the_start(text, scale, total, split, where)
        for text, default in zip(texts, (0, total), strict=True)
    )
    if not 0 <= start < stop <= total:
        what = "shards" if unit == "shard" else "examples"
        raise UserError(
            f"{where}.split={split!r} means {what} [{start}, {stop}) of the {total} in {name!r}; "
            f"a slice must hold at least one and end at {total} or before."
        )
    if unit == "shard":
        start, stop = ends[start], ends[stop]
    return Slice(name, start, stop)


def _unit(match: re.Match[str], split: str, where: str) -> tuple[str, list[str | None]]:
    """("", "%" or "shard"; the numbers around the colon, None where there is none)."""
    if match["shard"] is not None:
        following = str(int(match["shard"]) + 1)
        return "shard", [match["shard"], None if following == "0" else following]
    given = [match["start"], match["stop"]]
    units = {text.lstrip("-.0123456789") for text in given if text is not None} or {""}
    if len(units) > 1:
        raise UserError(
            f"{where}.split={split!r}: its two numbers have different units. Write both in "
            "examples, both in percent or both in shards: train[60%:66%]."
        )
    (unit,) = units
    return unit, [text and text.removesuffix(unit) for text in given]


def _from_the_start(
    text: str, scale: Callable[[str], int], total: int, split: str, where: str
) -> int:
    number = scale(text)
    if text.startswith("-") and number == 0:
        raise UserError(
            f"{where}.split={split!r}: -0 from the end of {total} in {text}, which is rounded to "
            "whole ones. Leave that number out, or give a larger one."
        )
    return number + total if number < 0 else number


def _match(split: str, where: str) -> re.Match[str]:
    match = _SPLIT.fullmatch(split)
    if match is None:
        raise UserError(
            f"{where}.split={split!r} is not a split. Write a name, or a name and one slice in "
            "examples, percent or shards: train, train[:98%], train[51200:], full[25600:51200], "
            "train[1shard:]. Put + between several."
        )
    return match


HELD_OUT = "it has no splits of its own: a tenth of it is held out as the split val"


def held_out(orders: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Tells which images are `val` where nothing else says so, bool [n]: one in ten of each class.

    Of a class with n of all N images in classes of more than one, n / N of a tenth of N, rounded
    down or up: up where most is cut off. A class of one image keeps it for training.

    Args:
      orders: uint64 [n], the first 8 bytes of a SHA-256 of each image's name.
      classes: int [n], numbers from 0.
    """
    counts = np.bincount(classes)
    sizes = np.where(counts > 1, counts, 0)
    total = max(1, int(sizes.sum()))
    number = -(-int(sizes.sum()) // 10)
    # In each class those first that were `val` by the hash alone.
    rank = np.lexsort((orders, (orders >> np.uint64(32)) % np.uint64(10), classes))
    starts = np.cumsum(counts) - counts
    firsts = np.zeros(len(counts), np.uint64)
    firsts[counts > 0] = orders[rank[starts[counts > 0]]]
    quotas = sizes * number // total
    cut_off = np.lexsort((firsts, -(sizes * number % total)))
    cut_off = cut_off[sizes[cut_off] > 0]
    quotas[cut_off[: number - int(quotas.sum())]] += 1
    within = np.arange(len(rank)) - starts[classes[rank]]
    result = np.zeros(len(orders), bool)
    result[rank] = within < quotas[classes[rank]]
    return result
