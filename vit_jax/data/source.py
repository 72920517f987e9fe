"""Sources of examples: what every one of them offers, and a selection of the examples of one."""

from __future__ import annotations

import abc
import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from vit_jax.data.order.label_index import Labels

NO_LABEL = -1  # pads an example's labels


class Example(NamedTuple):
    """An example as stored, still encoded."""

    image: bytes  # an encoded image file
    labels: tuple[int, ...]  # classes, at most the source's `max_labels` of them
    orientation: int = 1  # EXIF orientation 1..8; only image folders honour it
    weights: tuple[float, ...] = ()  # of the labels, each in [0, 1]; (): all of them 1
    fault: str = ""  # why `image` was not even read: a bad image


class Source(abc.ABC):
    """A split of a data set with random access. Example i is the same on every host and run.

    Attributes:
     name: the name of the data set.
      num_examples: how many examples there are.
      num_classes: labels are in [0, num_classes).
      fingerprint: hexadecimal; equal for equal content, as far as that is cheap to determine.
      class_names: None if the classes have numbers alone.
      max_labels: K; the labels of an example are padded to this many.
      weighted: whether labels may have weights.
    """

    name: str
    num_examples: int
    num_classes: int
    fingerprint: str
    class_names: tuple[str, ...] | None = None
    max_labels: int = 1
    weighted: bool = False

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


class DerivedSource(Source):
    """Declares whatever `source` declares; subclasses set what differs."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.name = source.name
        self.num_examples = source.num_examples
        self.num_classes = source.num_classes
        self.fingerprint = source.fingerprint
        self.class_names = source.class_names
        self.max_labels = source.max_labels
        self.weighted = source.weighted

    def describe(self, index: int) -> str:
        """The location that `source` gives."""
        return self.source.describe(index)


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
        self.fingerprint = digest(f"{source.fingerprint}: {rule}")

    def read(self, indices: np.ndarray) -> list[Example]:
        """The selected examples of `source`."""
        return self.source.read(self.select(indices))

    def describe(self, index: int) -> str:
        """The location that `source` gives."""
        return self.source.describe(int(self.select(np.array([index]))[0]))


def listed(source: Source, indices: np.ndarray) -> SelectedSource:
    """The examples at `indices`, int64 [n], in that order."""
    rule = f"listed {digest(indices.tobytes())}"
    return SelectedSource(source, len(indices), indices.__getitem__, rule=rule)


def digest(content: str | bytes) -> str:
    """SHA-256 in hexadecimal; a text may hold file names of any bytes."""
    data = content.encode(errors="surrogateescape") if isinstance(content, str) else content
    return hashlib.sha256(data).hexdigest()
