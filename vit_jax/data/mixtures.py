"""Mixtures of data sets: their examples as one source, and a stream with a quota of each."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from vit_jax.core.errors import UserError
from vit_jax.data.source import Source
from vit_jax.data.sources.joined import JoinedSource, check_same_classes, locate
from vit_jax.data.streams import Stream, keys, permute

_BLOCK = 1000  # positions of a block of a mixture, at most
_BLOCK_KEY = 2**32  # distinguishes the orders of blocks from the components', which count from 0


class MixtureSource(JoinedSource):
    """The examples of all components, one component behind the other, by the order of names."""

    def __init__(self, components: Mapping[str, Source]) -> None:
        """UserError unless all have the same classes: labels are taken as they are."""
        self._names = sorted(components)
        parts = [components[name] for name in self._names]
        cure = "Labels are not translated; prepare the data sets with one list of classes."
        check_same_classes(dict(zip(self._names, parts, strict=True)), "input.mixture", cure)
        super().__init__(parts)
        self.name = " + ".join(self._names)

    def describe(self, index: int) -> str:
        """The component, and the location in it."""
        part, _ = locate(self._ends, index)
        return f"{self._names[part]}: {super().describe(index)}"


def mixed(sizes: np.ndarray, quota_by_name: Mapping[str, int], *, seed: int) -> Stream:
    """Blocks in which each component of a mixture has its quota of positions, in a seeded order.

    `sizes`: examples of each component, int64 [n], by the order of names. Each component has epochs
    and orders of its own.
    """
    of_block = np.array([quota_by_name[name] for name in sorted(quota_by_name)], np.int64)
    ends = np.cumsum(of_block)
    firsts = np.cumsum(sizes) - sizes

    def stream(positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        blocks, places = np.divmod(positions, ends[-1])
        order = keys(seed, blocks, _BLOCK_KEY)
        places = permute(places, num_examples=int(ends[-1]), keys=order)
        parts = np.searchsorted(ends, places, side="right")
        component_positions = blocks * of_block[parts] + places - (ends - of_block)[parts]
        epochs, places = np.divmod(component_positions, sizes[parts])
        component_keys = keys(seed, epochs, parts)
        indices = permute(places, num_examples=sizes[parts], keys=component_keys)
        return epochs, firsts[parts] + indices

    return stream


def quotas(weights: Mapping[str, float]) -> dict[str, int]:
    """Positions of each component in a block of a mixture, from the components' weights.

    Exact for whole numbers that sum to 1,000 or less; others are rounded to thousandths, so that
    they sum to a block (largest remainders). UserError if nothing is left of a component.
    """
    total = sum(weights.values())
    if total <= _BLOCK and all(float(weight).is_integer() for weight in weights.values()):
        result = {name: int(weight) for name, weight in weights.items()}
    else:
        exact = {name: weight / total * _BLOCK for name, weight in weights.items()}
        result = {name: int(quota) for name, quota in exact.items()}
        by_remainder = sorted(weights, key=lambda name: (result[name] - exact[name], name))
        for name in by_remainder[: _BLOCK - sum(result.values())]:
            result[name] += 1
    for name, quota in result.items():
        if not quota:
            rule = f"is less than one in {_BLOCK:,} of {total:g}: raise it, or leave {name} out."
            raise UserError(rule, field=f"input.mixture.{name}.weight", value=weights[name])
    return result
