"""What a source hands out, and what every source can do."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np


class Example(NamedTuple):
    """One example as stored: still encoded."""

    image: bytes  # an encoded image file
    labels: tuple[int, ...]  # classes, at most the source's `max_labels` of them
    orientation: int = 1  # EXIF orientation 1..8; only image folders honour it
    weights: tuple[float, ...] = ()  # of the labels, each in [0, 1]; (): all of them 1
    fault: str = ""  # why `image` was not even read: a bad image


class Source(Protocol):
    """A split of a data set with random access. Example i is the same on every host and run."""

    name: str
    num_examples: int
    num_classes: int
    class_names: tuple[str, ...] | None
    max_labels: int  # K: labels of an example are padded to this many
    weighted: bool  # whether its examples may have weights
    fingerprint: str  # hexadecimal; equal for equal content, as far as that is cheap to tell

    def read(self, indices: np.ndarray) -> list[Example]:
        """Examples at `indices` (int64 [n], each in [0, num_examples)), in that order.

        Called from several threads at once. UserError names the file and the record that is
        corrupt; the image bytes themselves are not looked at.
        """
        ...

    def describe(self, index: int) -> str:
        """Where example `index` is stored, for messages: "/data/waste/train/glass/a.jpg"."""
        ...
