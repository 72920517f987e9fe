"""Examples kept in memory, still encoded: input.cache=ram."""

from __future__ import annotations

import threading

import numpy as np

from vit_jax.core.errors import UserError
from vit_jax.data.source import DerivedSource, Example, Source

LIMIT_BYTES = 8 * 2**30  # of all examples: the default
_OVERHEAD_BYTES = 300  # of Python's objects for an example
_WEIGHT_BYTES = 32  # of a label's weight, likewise
_SAMPLE = 256  # examples whose mean size is taken for all


class InMemory(DerivedSource):
    """Keeps what was read of `source`, so that it is not read again.

    Memory stays below the limit: what does not fit is read each time.
    """

    def __init__(self, source: Source, *, limit_bytes: int) -> None:
        super().__init__(source)
        self._examples: dict[int, Example] = {}
        self._free_bytes = limit_bytes
        self._lock = threading.Lock()

    def read(self, indices: np.ndarray) -> list[Example]:
        """Reads cached examples from memory, and the rest from the source."""
        missing = np.array([i for i in indices.tolist() if i not in self._examples], np.int64)
        read = self.source.read(missing) if len(missing) else []
        new = dict(zip(missing.tolist(), read, strict=True))
        self._keep(new)
        return [new[i] if i in new else self._examples[i] for i in indices.tolist()]

    def _keep(self, new: dict[int, Example]) -> None:
        with self._lock:
            for index, example in new.items():
                if index not in self._examples and self._free_bytes >= _memory_bytes(example):
                    self._free_bytes -= _memory_bytes(example)
                    self._examples[index] = example


def check_fits_in_memory(source: Source, *, limit_bytes: int) -> None:
    """UserError if the source is larger than the limit, by the mean size of some examples."""
    count = min(_SAMPLE, source.num_examples)
    indices = np.linspace(0, source.num_examples - 1, count).astype(np.int64)
    mean_bytes = np.mean([_memory_bytes(example) for example in source.read(indices)])
    needed_bytes = round(float(mean_bytes) * source.num_examples)
    if needed_bytes > limit_bytes:
        rule = f"takes about {needed_bytes:,} bytes of input.cache_bytes={limit_bytes:,}."
        raise UserError(rule, field="input.cache", value="ram")


def _memory_bytes(example: Example) -> int:
    stored = len(example.image) + sum(map(len, example.maps))
    return stored + _OVERHEAD_BYTES + _WEIGHT_BYTES * len(example.weights)
