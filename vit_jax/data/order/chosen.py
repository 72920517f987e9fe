"""Some examples of a source, as a source."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np

from vit_jax.data.example import Example, Source

Choose = Callable[[np.ndarray], np.ndarray]


class Chosen:
    """Example i is example `choose(i)` of `source`."""

    def __init__(self, source: Source, num_examples: int, choose: Choose, *, rule: str) -> None:
        """`choose` maps int64 [n] to int64 [n]; `rule` says in the fingerprint what it does."""
        self.whole = source
        self.choose = choose
        self.name = source.name
        self.num_examples = num_examples
        self.num_classes = source.num_classes
        self.class_names = source.class_names
        self.max_labels = source.max_labels
        self.weighted = source.weighted
        content = f"{source.fingerprint}: {rule}"
        self.fingerprint = hashlib.sha256(content.encode()).hexdigest()

    def read(self, indices: np.ndarray) -> list[Example]:
        """Those of the source."""
        return self.whole.read(self.choose(indices))

    def describe(self, index: int) -> str:
        """As the source does."""
        return self.whole.describe(int(self.choose(np.array([index]))[0]))


def listed(source: Source, indices: np.ndarray) -> Chosen:
    """The examples at `indices`, int64 [n], in that order."""
    rule = f"listed {hashlib.sha256(indices.tobytes()).hexdigest()}"
    return Chosen(source, len(indices), indices.__getitem__, rule=rule)
