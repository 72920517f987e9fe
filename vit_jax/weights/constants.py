"""What a format's readers take for granted, against the fields of the model to write."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.core.errors import UserError
from vit_jax.weights.layout import Layout
from vit_jax.weights.resnet_axes import is_standardized

_EPSILON, _OF = "weight_epsilon", "weight_epsilon_of"


def check(spec: Any, layout: Layout, instead: str) -> None:
    """UserError if `layout`'s readers compute something else from the same arrays.

    instead: the end of the message, what to do.
    """
    differing = [
        f"{field}={getattr(spec, field)} (there: {theirs})"
        for field, theirs in layout.computes.items()
        if getattr(spec, field) != theirs and not (field == _EPSILON and _scalable(spec, layout))
    ]
    if differing:
        raise UserError(
            f"{layout.title} says nothing of these, and its readers would compute something else: "
            f"{', '.join(differing)}. {instead}"
        )


def kernels_for(
    params: Mapping[str, np.ndarray], spec: Any, layout: Layout
) -> dict[str, np.ndarray]:
    """Parameters with which `layout`'s epsilon of the weights' variance gives the same function.

    w / sqrt(var(w) + a) is the same for c w and c^2 a: kernels are multiplied by sqrt(theirs /
    ours). With equal epsilons they stay as they are.
    """
    if not _scalable(spec, layout) or layout.computes[_EPSILON] == spec.weight_epsilon:
        return dict(params)
    factor = np.float32(math.sqrt(layout.computes[_EPSILON] / spec.weight_epsilon))
    return {name: x * factor if is_standardized(name) else x for name, x in params.items()}


def _scalable(spec: Any, layout: Layout) -> bool:
    """Whether both add an epsilon to the variance."""
    there = layout.computes.get(_OF)
    return there == "variance" == getattr(spec, _OF, None) and spec.weight_epsilon > 0
