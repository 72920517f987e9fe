"""Splits of data that have none of their own: by names of files and folders, else held out.

Names say splits as Hugging Face's `datasets` reads them.
"""

import posixpath
import re
from collections.abc import Callable, Sequence

import numpy as np

from vit_jax.core.errors import NOT_GIVEN, UserError

KEYWORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_SHARD = re.compile(r"data/([^/]+)-\d{5}-of-\d{5}[^/]*\.[^/]*")
_BETWEEN_WORDS = re.compile(r"[-._ 0-9]")
_SPLIT_OF = {word: split for split, words in KEYWORDS.items() for word in words}
_WORDS_OF_SPLITS = re.compile(rf"(?i)(?:^|[-._ 0-9])({'|'.join(_SPLIT_OF)})(?=[-._ 0-9])")


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
    anything. UserError if others of these names say none, or several.
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

    `said`: the splits of which each path has a word, bool [n, splits]; `path`: that of a number.
    """
    counts, unclear = said.sum(axis=0), np.flatnonzero(said.sum(axis=1) != 1)
    listed = ", ".join(f"{k} ({n:,})" for k, n in zip(KEYWORDS, counts, strict=True) if n)
    if len(unclear):
        rule = (
            f"names files by splits, {listed}, but {len(unclear):,} of {len(said):,} say none, or "
        )
        rule += f"several: {path(int(unclear[0]))}."
        raise UserError(rule, field=field, value=value, cure=cure)
    return said.argmax(axis=1), listed


BY_NAMES = "splits by the names of files, as Hugging Face's datasets reads them"
HELD_OUT = "it has no splits of its own: a tenth of it is held out as the split val"


def held_out(orders: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Tells which images are `val` where nothing else says so, bool [n]: one in ten of each class.

    Of a class with n of all N images in classes of more than one, n / N of a tenth of N, rounded
    down or up: up where most is cut off. A class of one image keeps it for training. `orders`:
    uint64 [n], the first 8 bytes of a SHA-256 of each image's name; `classes`: int [n], numbers
    from 0.
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
