"""Splits of data that have none of their own: by names of files and folders, else held out.

Names say splits as Hugging Face's `datasets` reads them.
"""

import itertools
import posixpath
import re
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from vit_jax.core.errors import NOT_GIVEN, UserError

T = TypeVar("T")

KEYWORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_SHARD = re.compile(r"data/([^/]+)-\d{5}-of-\d{5}[^/]*\.[^/]*")


def splits_said(texts: Sequence[str]) -> np.ndarray:
    """Tells whether a word of each path is of a split, bool [n, splits]; not one at its end.

    `texts` may be an array of Arrow. Case does not matter, unlike in `datasets`.
    """
    import pyarrow as pa  # takes a while, which folders of images need not
    import pyarrow.compute as pc

    paths, match = pa.array(texts, pa.large_string()), pc.match_substring_regex
    patterns = [rf"(?i)(^|[-._ 0-9/])({'|'.join(k)})[-._ 0-9/]" for k in KEYWORDS.values()]
    said = [match(paths, pattern).to_numpy(zero_copy_only=False) for pattern in patterns]
    return np.stack(said, axis=1)


def splits_in_paths(paths: Sequence[str]) -> list[list[str]]:
    """The splits that each path says, with "/" between its names; [] for none.

    By the first of these rules that any of the paths satisfies, as in `datasets` of Hugging Face:
    `data/<split>-00000-of-00001.*`; a folder of which one word is of KEYWORDS; such a file.
    """
    if any(shards := [_SHARD.fullmatch(path) for path in paths]):
        return [[shard[1]] if shard else [] for shard in shards]
    paths = [path.encode(errors="replace").decode() for path in paths]  # some are not text
    said = splits_said([path.rpartition("/")[0] + "/" for path in paths])
    if not said.any():
        said = splits_said([path.rpartition("/")[2] for path in paths])
    return [list(itertools.compress(KEYWORDS, row)) for row in said]


def splits_in_names(paths: Sequence[str], *, field: str, value: object) -> dict[str, str]:
    """The split that the name of each file says, such as cat/train_1.png; {} where they say none.

    They do where some say `train` and others a split that is held out: a single `test.png` may be
    anything. UserError if others of these names say none, or several.
    """
    # Names of files may have bytes that are not text.
    said = splits_said([posixpath.basename(p).encode(errors="replace").decode() for p in paths])
    if not said[:, 0].any() or not said[:, 1:].any():
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


def with_val(
    items: Sequence[T], hashes: Sequence[str], classes: Sequence[str]
) -> dict[str, list[T]]:
    """`items` as `train` and `val`, by their SHA-256 in hexadecimal and their classes; in order."""
    orders = np.array([int(text[:16], 16) for text in hashes], np.uint64)
    is_val = held_out(orders, np.unique(np.array(classes, str), return_inverse=True)[1])
    return {
        split: [item for item, val in zip(items, is_val.tolist(), strict=True) if val == wanted]
        for split, wanted in (("train", False), ("val", True))
    }
