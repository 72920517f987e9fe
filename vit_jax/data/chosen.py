"""Some examples of a source, as a source."""

from __future__ import annotations

import numpy as np

from vit_jax.data.example import Example, Source


class Chosen:
    """Example i is example `indices[i]` of `source`."""

    def __init__(self, source: Source, indices: np.ndarray) -> None:
        """`indices` is int64 [n]."""
        self._source, self._indices = source, indices
        self.name = source.name
        self.num_examples = len(indices)
        self.num_classes = source.num_classes
        self.class_names = source.class_names
        self.max_labels = source.max_labels
        self.fingerprint = source.fingerprint

    def read(self, indices: np.ndarray) -> list[Example]:
        """Those of the source."""
        return self._source.read(self._indices[indices])

    def describe(self, index: int) -> str:
        """As the source does."""
        return self._source.describe(int(self._indices[index]))
