"""The labels of all examples of a split, without its images: for choosing examples by class.

They come from the source itself; from `labels-<split>.npz` beside the records of a TFDS data set;
else from all records, read once, and are kept in the user's cache folder. In a file they are
compressed sparse rows, as in `Labels`:

    offsets  int64 [n + 1]
    labels   int32 [offsets[n]]
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import io
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vit_jax.core.errors import UserError
from vit_jax.core.files import cache_dir
from vit_jax.data import files
from vit_jax.data.source import (
    Labels,
    SelectedSource,
    Source,
    digest,
    row_offsets,
    select_examples,
)
from vit_jax.data.sources.joined import JoinedSource, join_labels
from vit_jax.data.streams import Stream, in_fixed_order, keys, permute

REMEDY = "Move it away: then the labels are read from the records, once."
_BLOCK = 256  # examples that are read at once in a scan
_SCANNING_THREADS = 16  # threads that wait for the disk

Progress = Callable[[int, int], None]  # examples done, and their total


class ByClass(NamedTuple):
    """Class c has the examples `examples[offsets[c]:offsets[c + 1]]`, in rising order."""

    offsets: np.ndarray  # int64 [C + 1]
    examples: np.ndarray  # int32 or int64 [offsets[C]]


def collect(examples: Sequence[Sequence[int]]) -> Labels:
    """The labels of each example, one after the other."""
    flat = np.fromiter(itertools.chain.from_iterable(examples), np.int32)
    return Labels(row_offsets(np.fromiter(map(len, examples), np.int64, len(examples))), flat)


def by_class(labels: Labels, num_classes: int, *, describe: Callable[[int], str]) -> ByClass:
    """The examples of each class; an example with several labels is in several classes."""
    classes, examples = labels.labels, labels.examples()
    outside = np.flatnonzero((classes < 0) | (classes >= num_classes))
    if len(outside):
        rule = f"has the label {classes[outside[0]]}, outside [0, {num_classes})."
        raise UserError(rule, field=describe(int(examples[outside[0]])))
    pairs = np.unique(classes.astype(np.int64) * labels.num_examples + examples)
    classes, examples = np.divmod(pairs, max(labels.num_examples, 1))
    kind = np.int32 if labels.num_examples < 2**31 else np.int64
    return ByClass(row_offsets(np.bincount(classes, minlength=num_classes)), examples.astype(kind))


def balanced(by_class: ByClass, *, seed: int) -> Stream:
    """Streams all classes equally often, whatever their sizes. UserError without any label.

    With C classes that have examples, every block of C positions holds each of them once, in a
    seeded order. The k-th visit of a class takes the k-th example of an endless stream over that
    class, which goes through its examples epoch by epoch, each in a seeded order. An example with
    several labels is visited for each of them, one without labels never.
    """
    sizes = np.diff(by_class.offsets)
    classes = np.flatnonzero(sizes)
    if not len(classes):
        raise UserError('input.balance="class": no example has a label. Set input.balance=none.')
    several = len(np.unique(by_class.examples)) < len(by_class.examples)  # labels of an example

    def stream(positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        blocks, places = np.divmod(positions, len(classes))
        order = permute(places, num_examples=len(classes), keys=keys(seed, blocks))
        visited = classes[order]
        epochs, places = np.divmod(blocks, sizes[visited])
        class_keys = keys(seed, epochs, visited)
        members = permute(places, num_examples=sizes[visited], keys=class_keys)
        examples = by_class.examples[by_class.offsets[visited] + members].astype(np.int64)
        # An example in several classes is augmented anew at each visit, in one block too.
        return (blocks * len(classes) + order if several else blocks), examples

    return stream


def first_of_each_class(source: Source, number: int, labels: Labels) -> SelectedSource:
    """The first `number` examples of each class in a fixed order; all, where it has fewer.

    An example with several labels counts for each of its classes and is there once, so a class
    may have more than `number`. Nested like other subsets. `labels` belong to `source`.
    """
    classes, examples = by_class(labels, source.num_classes, describe=source.describe)
    sizes = np.diff(classes)
    class_of_each = np.repeat(np.arange(source.num_classes), sizes)
    places = in_fixed_order(examples.astype(np.int64), source.num_examples)
    order = np.lexsort((places, class_of_each))
    rank = np.arange(len(examples)) - np.repeat(classes[:-1], sizes)
    indices = np.unique(examples[order[rank < number]]).astype(np.int64)
    return select_examples(source, indices)


def find(source: Source, progress: Progress = lambda done, total: None) -> Labels:
    """The labels of all examples of `source`, from the cheapest place that has them."""
    stored = source.stored_labels()
    if stored is not None:
        return stored
    if isinstance(source, SelectedSource):
        return find(source.source, progress).take(source.select(np.arange(source.num_examples)))
    if isinstance(source, JoinedSource):
        return join_labels([find(part, progress) for part in source.parts])
    # Records that were written anew with other labels have the fingerprint of the old ones.
    cache = cache_dir() / "labels" / f"{digest(source.fingerprint + source.stamp())}.npz"
    with contextlib.suppress(UserError, FileNotFoundError):  # damaged: made again
        cached = read(cache)
        if cached.num_examples == source.num_examples:
            return cached
    scanned = _scan(source, progress)
    with contextlib.suppress(OSError):  # it is only a short cut
        write(cache, scanned)
    return scanned


def _scan(source: Source, progress: Progress) -> Labels:
    def read_block(start: int) -> Labels:
        indices = np.arange(start, min(start + _BLOCK, source.num_examples))
        return collect([example.labels for example in source.read(indices)])

    blocks: list[Labels] = []
    with concurrent.futures.ThreadPoolExecutor(_SCANNING_THREADS) as pool:
        for block in pool.map(read_block, range(0, source.num_examples, _BLOCK)):
            blocks.append(block)
            progress(min(len(blocks) * _BLOCK, source.num_examples), source.num_examples)
    return join_labels(blocks)


def file_name(split: str) -> str:
    """Name of the file of labels beside the records; `split` is a name without a slice."""
    return f"labels-{split}.npz"


def write(path: Path, labels: Labels) -> None:
    """Writes the file at once or not at all. OSError if it cannot."""
    files.write_npz(path, offsets=labels.offsets, labels=labels.labels)


def read(path: str | Path, *, num_examples: int | None = None) -> Labels:
    """Reads a file of labels, of so many examples. FileNotFoundError if there is none."""
    try:
        with np.load(io.BytesIO(files.read(path)) if files.is_remote(path) else path) as arrays:
            labels = Labels(arrays["offsets"], arrays["labels"])
        offsets = labels.offsets
        if offsets[0] != 0 or offsets[-1] != len(labels.labels) or (np.diff(offsets) < 0).any():
            raise ValueError("offsets and labels do not fit together")
        if num_examples not in (None, labels.num_examples):
            raise ValueError(f"{labels.num_examples:,} examples, not {num_examples:,}")
        return labels
    except FileNotFoundError:
        raise
    except files.NPZ_FAULTS as error:
        raise UserError(f"{path} is damaged ({error}). {REMEDY}") from error
