"""Splits and their slices, as TFDS writes them: "train", "train[:98%]", "full[25600:51200]".

https://www.tensorflow.org/datasets/splits. A slice that TFDS reads in a way that its text does not
show, such as "train[60:66%]" (both in percent) or "train[:-0]" (nothing), is refused.

Several with "+" between them are one behind the other: "train[:800]+validation[:200]".

Names of files and folders say splits as Hugging Face's `datasets` reads them.
"""

import itertools
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from vit_jax.core.errors import NOT_GIVEN, UnknownSplit, UserError, nearest

ALL = "all"  # all images of a folder that has no folders of splits

_BOUNDARY = r"-?\d+(\.\d+(?=%))?(%|shard)?"
_SPLIT = re.compile(
    rf"(?P<name>[\w.-]+)(\[(?!:\])"
    rf"((?P<start>{_BOUNDARY})?:(?P<stop>{_BOUNDARY})?|(?P<shard>-?\d+)shard)\])?"
)

KEYWORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_SHARD = re.compile(r"data/([^/]+)-\d{5}-of-\d{5}[^/]*\.[^/]*")
_BETWEEN_WORDS = re.compile(r"[-._ 0-9]")
_SPLIT_OF = {word: split for split, words in KEYWORDS.items() for word in words}
_WORDS_OF_SPLITS = re.compile(rf"(?i)(?:^|[-._ 0-9])({'|'.join(_SPLIT_OF)})(?=[-._ 0-9])")


class Slice(NamedTuple):
    """Examples [start, stop) of the split called `name`."""

    name: str
    start: int
    stop: int

    @property
    def num_examples(self) -> int:
        """The number of examples in the slice; at least 1."""
        return self.stop - self.start


def splits_in_paths(paths: Sequence[str]) -> list[list[str]]:
    """The splits that each path says, with "/" between its names; [] for none.

    By the first of these rules that any of the paths satisfies, as in `datasets` of Hugging Face:
    `data/<split>-00000-of-00001.*`; a folder of which one word is of KEYWORDS; such a file. Case
    does not matter, unlike there.
    """
    rules: tuple[Callable[[str], list[str]], ...] = (
        lambda path: [match[1]] if (match := _SHARD.fullmatch(path)) else [],
        lambda path: _splits_in_words(_BETWEEN_WORDS.split("-".join(path.split("/")[:-1]))),
        lambda path: _splits_in_words(_BETWEEN_WORDS.split(path.rpartition("/")[2])[:-1]),
    )
    for rule in rules:
        if any(splits := [rule(path) for path in paths]):
            break
    return splits


def _splits_in_words(words: Sequence[str]) -> list[str]:
    lower = {word.lower() for word in words}
    return [split for split, keywords in KEYWORDS.items() if not lower.isdisjoint(keywords)]


def splits_in_names(paths: Sequence[str], *, field: str, value: object) -> dict[str, str]:
    """The split that the name of each file says, such as cat/train_1.png; {} where they say none.

    They do where some say `train` and others a split that is held out: a single `test.png` may be
    anything.

    Raises:
      UserError: others of these names say none, or several.
    """
    names = map(posixpath.basename, paths)
    words = [{_SPLIT_OF[word.lower()] for word in _WORDS_OF_SPLITS.findall(x)} for x in names]
    said = np.array([[split in said for split in KEYWORDS] for said in words], bool)
    if not words or not said[:, 0].any() or not said[:, 1:].any():
        return {}
    cure = "Rename them, or make folders <split>/<class>."
    splits, _ = only_split(said, paths.__getitem__, field=field, value=value, cure=cure)
    return dict(zip(paths, np.array(list(KEYWORDS))[splits].tolist(), strict=True))


def only_split(
    said: np.ndarray,
    path: Callable[[int], str],
    *,
    field: str,
    value: object = NOT_GIVEN,
    cure: str,
) -> tuple[np.ndarray, str]:
    """The split that each path says, int64 [n], by its number in KEYWORDS; and a list of them.

    Args:
      said: the splits of which each path has a word, bool [n, splits].
      path: the path of this number.

    Raises:
      UserError: a path says none, or several.
    """
    counts, unclear = said.sum(axis=0), np.flatnonzero(said.sum(axis=1) != 1)
    listed = ", ".join(f"{k} ({n:,})" for k, n in zip(KEYWORDS, counts, strict=True) if n)
    if len(unclear):
        rule = (
            f"names files by splits, {listed}, as Hugging Face's datasets reads them, but "
            f"{len(unclear):,} of {len(said):,} say none, or several: {path(int(unclear[0]))}."
        )
        raise UserError(rule, field=field, value=value, cure=cure)
    return said.argmax(axis=1), listed


def parts(split: str) -> list[str]:
    """The slices of a split: "train[:800]+test" -> ["train[:800]", "test"]."""
    return [part.strip() for part in split.split("+")]


def check_disjoint(slices: Sequence[Slice | None], split: str, *, where: str) -> None:
    """UserError if two of the slices of `split` share examples, which would then count twice."""
    known = [part for part in slices if part is not None]
    for one, other in itertools.combinations(known, 2):
        if overlap([one], [other]):
            rule = f"has examples of {other.name!r} twice."
            raise UserError(rule, field=f"{where}.split", value=repr(split))


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
    examples. UnknownSplit if the split does not exist, UserError if the slice leaves it or is
    empty; they name the config's section `where`.
    """
    match, field = _match(split, where), f"{where}.split"
    name = match["name"]
    if name not in num_examples:
        hint = nearest(name, num_examples)
        if where.startswith("evals.") and len(num_examples) == 1:
            (one,) = num_examples
            hint += f" Hold out a part: input.split='{one}[:90%]' and {field}='{one}[90%:]'."
        rule = f"is not there: the data set has no split {name!r}. {hint}"
        raise UnknownSplit(rule, field=field, value=repr(split))
    start, stop = match["start"], match["stop"]
    if match["shard"] is not None:
        start = match["shard"] + "shard"
        stop = None if match["shard"] == "-1" else f"{int(match['shard']) + 1}shard"
    units = {text.lstrip("-.0123456789") for text in (start, stop) if text is not None} or {""}
    if len(units) > 1 or ("shard" in units and shard_lengths is None):
        rule = "has two units, unlike train[60%:66%], or shards where there are no record files."
        raise UserError(rule, field=field, value=repr(split))
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
        rule += f"; a slice must hold at least one and end at {total} or before."
        raise UserError(rule, field=field, value=repr(split))
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
        raise UserError(f"{where}.split={split!r} is not a split, such as train or train[:98%].")
    return match


BY_NAMES = "splits by the names of files, as Hugging Face's datasets reads them"
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
