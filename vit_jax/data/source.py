"""Sources of examples: what is asked of one, what it offers; a selection of one."""

from __future__ import annotations

import abc
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from vit_jax.core.arrays import RGB, Pixels
from vit_jax.data.sources.splits import Slice, overlap

T = TypeVar("T")

NO_LABEL = -1  # pads an example's labels


class Labels(NamedTuple):
    """Example i has the labels `labels[offsets[i]:offsets[i + 1]]`."""

    offsets: np.ndarray  # int64 [n + 1], from 0, non-decreasing
    labels: np.ndarray  # int32 [offsets[n]]

    @property
    def num_examples(self) -> int:
        """The number of examples, n."""
        return len(self.offsets) - 1

    def examples(self) -> np.ndarray:
        """The example of each label, int64 [offsets[n]]."""
        return np.repeat(np.arange(self.num_examples), np.diff(self.offsets))

    def slice(self, start: int, stop: int) -> Labels:
        """The labels of examples [start, stop)."""
        first, last = self.offsets[start], self.offsets[stop]
        return Labels(self.offsets[start : stop + 1] - first, self.labels[first:last])

    def take(self, indices: np.ndarray) -> Labels:
        """The labels of the examples at `indices`, int64 [m], in that order."""
        counts = np.diff(self.offsets)[indices]
        offsets = row_offsets(counts)
        # Label j of the result is the (j - offsets[i])-th one of its example.
        places = np.arange(offsets[-1]) - np.repeat(offsets[:-1] - self.offsets[indices], counts)
        return Labels(offsets, self.labels[places])


def single(labels: Sequence[int] | np.ndarray) -> Labels:
    """Labels of examples that have one label each."""
    return Labels(np.arange(len(labels) + 1), np.asarray(labels, np.int32))


def row_offsets(counts: np.ndarray) -> np.ndarray:
    """[n] sizes of rows -> int64 [n + 1]: where each begins, and the last ends."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


class Example(NamedTuple):
    """An example as stored, still encoded."""

    image: bytes  # an encoded image file
    labels: tuple[int, ...]  # classes, at most the source's `max_labels` of them
    orientation: int = 1  # EXIF orientation 1..8; only image folders honour it
    weights: tuple[float, ...] = ()  # of the labels, each in [0, 1]; (): all of them 1
    fault: str = ""  # why `image` was not even read: a bad image
    maps: tuple[bytes, ...] = ()  # encoded image files, one for each of the source's `maps`


class MapKind(NamedTuple):
    """A kind of maps, which have a number for each pixel of their image."""

    name: str  # of its array in a batch, uint16, where 0 is a pixel that says nothing
    void: int = 0  # the stored value of such pixels
    # Stored numbers are classes, which begin at 1 in a batch, and skip `void`; None: they are
    # measures, kept as they are.
    num_classes: int | None = None


MASK, DEPTH = "mask", "depth"  # names of maps of classes, and of measures


class Source(abc.ABC):
    """A split of a data set with random access. Example i is the same on every host and run."""

    name: str  # of the data set
    num_examples: int
    num_classes: int  # labels are in [0, num_classes)
    fingerprint: str  # hexadecimal; equal for equal content, as far as that is cheap to determine
    class_names: tuple[str, ...] | None = None  # None if the classes have numbers alone
    max_labels: int = 1  # K; the labels of an example are padded to this many
    weighted: bool = False  # whether labels may have weights
    maps: tuple[MapKind, ...] = ()  # of every image
    pixels: Pixels = RGB  # the form of all images
    part: Slice | None = None  # the examples of a split that these are, where that is known
    notes: tuple[str, ...] = ()  # what a person should know of its files, such as those not read
    location: str = ""  # the folder that is read, or several with commas; "" for none

    @abc.abstractmethod
    def read(self, indices: np.ndarray) -> list[Example]:
        """Examples at `indices` (int64 [n], each in [0, num_examples)), in that order.

        Called from several threads at once. UserError names the file and the record that is
        corrupt; the image bytes themselves are not looked at.
        """

    @abc.abstractmethod
    def describe(self, index: int) -> str:
        """The location of example `index`, for messages: "/data/waste/train/glass/a.jpg"."""

    def stored_labels(self) -> Labels | None:
        """Labels of all examples; None if the examples have to be read to know them."""
        return None

    def file_names(self) -> list[str] | None:
        """Names of the files that the images were, without folders; None if they are not kept."""
        return None

    def slices(self) -> list[Slice]:
        """The slices of splits that its examples are from, as far as they are known."""
        return [] if self.part is None else [self.part]

    def stamp(self) -> str:
        """A text that changes when a local file is written again; for caches of its content.

        Unlike the fingerprint it differs between copies of the same files.
        """
        return ""


class FileCache(NamedTuple):
    """The folder that copies are kept in."""

    folder: Path  # made if it is not there
    limit_bytes: int | None  # the most bytes in it; None: the disk is the limit
    progress: Callable[[int, int], None]  # called with the bytes copied so far, and all to copy


class TableOptions(NamedTuple):
    """The columns that `image_table` reads; see its fields of `input`. None: the usual name."""

    image_column: str | None = None
    split_column: str | None = None
    label_separator: str | None = None  # between the labels of a cell
    on_bad_image: str = "fail"  # "skip": images that are not there are bad ones; else an error


class Request(NamedTuple):
    """A request to a source, of which each source reads what concerns it."""

    split: str
    data_dir: str | None = None
    num_examples: int | None = None  # as declared
    num_classes: int | None = None
    image_size: tuple[int, int] = (1, 1)  # (height, width) of synthetic images
    cache: FileCache | None = None  # where record files are copied to
    label_weights: bool = True  # whether labels have the weights that the data give them
    label: str | None = None  # a feature of records, or derived from some: see tfds_labels.py
    labelled: bool = True  # whether images need labels; else those that are there are not read
    table: TableOptions = TableOptions()
    void: int | None = None  # the value of masks' pixels of no class; None: the source's
    # The config's section, for messages: "input", "input.mixture.birds", or "evals.test", whose
    # declared number of classes is the training data's.
    where: str = "input"


class DerivedSource(Source):
    """Declares and reads whatever `source` does; subclasses set what differs."""

    def __init__(self, source: Source) -> None:
        self.source = source
        for declared in Source.__annotations__:
            setattr(self, declared, getattr(source, declared))

    def read(self, indices: np.ndarray) -> list[Example]:
        examples = self.source.read(indices)
        return [self.changed(int(i), one) for i, one in zip(indices, examples, strict=True)]

    def changed(self, index: int, example: Example) -> Example:
        """The example at `index`, made of that of `source`."""
        del index
        return example

    def describe(self, index: int) -> str:
        return self.source.describe(index)

    def file_names(self) -> list[str] | None:
        return self.source.file_names()

    def slices(self) -> list[Slice]:
        return self.source.slices() if self.part is None else [self.part]

    def stamp(self) -> str:
        return self.source.stamp()


class SelectedSource(DerivedSource):
    """Example i is example `select(i)` of `source`."""

    def __init__(
        self,
        source: Source,
        num_examples: int,
        select: Callable[[np.ndarray], np.ndarray],
        *,
        rule: str,
    ) -> None:
        """`select` maps int64 [n] to int64 [n]; `rule` describes it in the fingerprint."""
        super().__init__(source)
        self.select = select
        self.num_examples = num_examples
        self.part = None
        self.fingerprint = digest(f"{source.fingerprint}: {rule}")

    def read(self, indices: np.ndarray) -> list[Example]:
        return self.source.read(self.select(indices))

    def describe(self, index: int) -> str:
        return self.source.describe(int(self.select(np.array([index]))[0]))

    def file_names(self) -> list[str] | None:
        names = self.source.file_names()
        return names and [names[i] for i in self.select(np.arange(self.num_examples))]

    def stored_labels(self) -> Labels | None:
        labels = self.source.stored_labels()
        return labels and labels.take(self.select(np.arange(self.num_examples)))


class Unlabelled(DerivedSource):
    """The images of `source` without labels, and without classes, whether it has some or not."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.num_classes, self.class_names = 0, None
        self.max_labels, self.weighted, self.maps = 1, False, ()
        # Another one than with labels: both may be kept under it (label_index.py, device_cache.py).
        self.fingerprint = digest(f"{source.fingerprint}: without labels")

    def changed(self, index: int, example: Example) -> Example:
        return example._replace(labels=(), weights=(), maps=())


def select_examples(source: Source, indices: np.ndarray) -> SelectedSource:
    """The examples at `indices`, int64 [n], in that order."""
    rule = f"listed {digest(indices.tobytes())}"
    return SelectedSource(source, len(indices), indices.__getitem__, rule=rule)


def digest(content: str | bytes) -> str:
    """SHA-256 in hexadecimal; a text may hold file names of any bytes."""
    data = content.encode(errors="surrogateescape") if isinstance(content, str) else content
    return hashlib.sha256(data).hexdigest()


def share_examples(one: Source, other: Source) -> bool:
    """Tells whether two splits of the same data share examples, as far as their slices say.

    Selections count as the whole of what they select from.
    """
    return overlap(one.slices(), other.slices())
