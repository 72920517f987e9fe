"""Several data sets as one source, and the stream that takes from each its share.

The stream consists of blocks, in which each component has a fixed number of positions, its quota:
shares are exact over every block. Which positions these are is a seeded order of the block. Each
component has epochs and orders of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from vit_jax.core.errors import UserError
from vit_jax.data.example import Example, Source
from vit_jax.data.order import Stream, keys, permute

_BLOCK = 1000  # positions, at most
_OF_BLOCKS = 2**32  # tells their orders from those of the components, which count from 0


class Joined:
    """The examples of all components, one component behind the other, by the order of names."""

    def __init__(self, components: Mapping[str, Source]) -> None:
        """UserError unless all have the same classes: labels are taken as they are."""
        self._names = sorted(components)
        self._parts = [components[name] for name in self._names]
        _check_classes(self._names, self._parts)
        self.sizes = np.array([part.num_examples for part in self._parts], np.int64)
        self._ends = np.cumsum(self.sizes)
        self.name = " + ".join(self._names)
        self.num_examples = int(self._ends[-1])
        self.num_classes = self._parts[0].num_classes
        named = [part.class_names for part in self._parts if part.class_names]
        self.class_names: tuple[str, ...] | None = named[0] if named else None
        self.max_labels = max(part.max_labels for part in self._parts)
        self.weighted = any(part.weighted for part in self._parts)
        content = "\n".join(part.fingerprint for part in self._parts)
        self.fingerprint = hashlib.sha256(content.encode()).hexdigest()

    def read(self, indices: np.ndarray) -> list[Example]:
        """One read for each component that is concerned."""
        examples: dict[int, Example] = {}
        parts, places = self._locate(indices)
        for part in np.unique(parts):
            chosen = np.flatnonzero(parts == part)
            read = self._parts[part].read(places[chosen])
            examples.update(zip(chosen.tolist(), read, strict=True))
        return [examples[i] for i in range(len(indices))]

    def describe(self, index: int) -> str:
        """As the component does."""
        parts, places = self._locate(np.array([index]))
        return f"{self._names[parts[0]]}: {self._parts[parts[0]].describe(int(places[0]))}"

    def _locate(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(components, indices in them), int64 [n] each."""
        parts = np.searchsorted(self._ends, indices, side="right")
        return parts, indices - (self._ends - self.sizes)[parts]


def _check_classes(names: Sequence[str], parts: Sequence[Source]) -> None:
    for name, part in zip(names, parts, strict=True):
        for other_name, other in zip(names, parts, strict=True):
            named = part.class_names and other.class_names
            if part.num_classes != other.num_classes:
                difference = f"{part.num_classes:,} and {other.num_classes:,}"
            elif named and part.class_names != other.class_names:
                difference = "not the same names, or not in the same order"
            else:
                continue
            raise UserError(
                f"input.mixture: {name} and {other_name} have other classes: {difference}. Labels "
                "are not translated; prepare the data sets with one list of classes."
            )


def quotas(weights: Mapping[str, float]) -> dict[str, int]:
    """Positions of each component in a block.

    Exact for whole numbers that sum to 1,000 or less; others are rounded to thousandths, so that
    they sum to a block (largest remainders). UserError if nothing is left of a component.
    """
    total = sum(weights.values())
    if total <= _BLOCK and all(float(weight).is_integer() for weight in weights.values()):
        result = {name: int(weight) for name, weight in weights.items()}
    else:
        shares = {name: weight / total * _BLOCK for name, weight in weights.items()}
        result = {name: int(share) for name, share in shares.items()}
        by_remainder = sorted(weights, key=lambda name: (result[name] - shares[name], name))
        for name in by_remainder[: _BLOCK - sum(result.values())]:
            result[name] += 1
    for name, quota in result.items():
        if not quota:
            raise UserError(
                f"input.mixture.{name}.weight={weights[name]:g} of {total:g} in all is less than "
                "one in 1,000 positions. Raise it, or take the component away by "
                f"input.mixture.{name}=none."
            )
    return result


def mixed(source: Joined, quota_by_name: Mapping[str, int], *, seed: int) -> Stream:
    """The stream over the examples of `source`; positions cost the same wherever they are."""
    of_block = np.array([quota_by_name[name] for name in sorted(quota_by_name)], np.int64)
    ends = np.cumsum(of_block)
    firsts = np.cumsum(source.sizes) - source.sizes

    def stream(positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        blocks, places = np.divmod(positions, ends[-1])
        order = keys(seed, blocks, _OF_BLOCKS)
        places = permute(places, num_examples=int(ends[-1]), keys=order)
        parts = np.searchsorted(ends, places, side="right")
        own_positions = blocks * of_block[parts] + places - (ends - of_block)[parts]
        epochs, places = np.divmod(own_positions, source.sizes[parts])
        own_order = keys(seed, epochs, parts)
        indices = permute(places, num_examples=source.sizes[parts], keys=own_order)
        return epochs, firsts[parts] + indices

    return stream
