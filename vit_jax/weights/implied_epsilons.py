"""Fields that a format's readers imply, compared with those of the model to write."""

import dataclasses
import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from vit_jax import models
from vit_jax.core.errors import UserError
from vit_jax.weights.axes import is_standardized
from vit_jax.weights.layout import Layout

_EPSILON, _OF, _NORM = "weight_epsilon", "weight_epsilon_of", "group_norm_epsilon"
# Different epsilons of a ResNet, up to this one, change its results little.
MAX_APPROXIMATE_EPSILON = 1e-5


def check(spec: Any, layout: Layout, instead: str, *, approximate: bool) -> None:
    """UserError if `layout`'s readers compute something else from the same arrays.

    Args:
      instead: advice, the end of the message.
      approximate: whether small epsilons may differ; `notice` says what that changes.
    """
    differing = _differing(spec, layout)
    if not differing:
        return
    close = _is_close(spec, layout, differing)
    if close and approximate:
        return
    listed = [f"{f}={getattr(spec, f)} (there: {layout.computes[f]})" for f in differing]
    hint = " Or python -m vit_jax.convert --approximate, which says how near it is."
    raise UserError(
        f"{layout.title} says nothing of these, and its readers would compute something else: "
        f"{', '.join(listed)}. {instead}{hint if close else ''}"
    )


def notice(params: Mapping[str, np.ndarray], spec: Any, layout: Layout) -> str:
    """A sentence about what readers of `layout` compute differently; "" if nothing.

    `params` have this project's names, as they are written.
    """
    differing, theirs = _differing(spec, layout), layout.computes
    if not differing:
        return ""
    changes = []
    if _EPSILON in differing or _OF in differing:
        change = _change_of_kernels(params, spec, layout)
        changes.append(f"standardised kernels by up to {change:.2g} of their size")
    if _NORM in differing:
        half = abs(spec.group_norm_epsilon - theirs[_NORM]) / 2
        changes.append(
            f"what group norms give by up to {half:.2g} / variance of the group, relatively"
        )
    listed = [f"{f}={theirs[f]} instead of {getattr(spec, f)}" for f in differing]
    return (
        f"only nearly the same model: {layout.title} is computed with {', '.join(listed)}, which "
        f"changes {' and '.join(changes)}."
    )


def preprocess(
    about: models.Preprocess, to: str, *, approximate: bool
) -> tuple[models.Preprocess, str]:
    """(preparation that readers of `to` can do, what that changes or "").

    They resize as Pillow does: never by area, and always with antialias. UserError where that
    differs and `approximate` is not set.
    """
    if about.resize is None or (about.interpolation != "area" and about.antialias):
        return about, ""
    instead = "box" if about.interpolation == "area" else about.interpolation
    ours = about.interpolation + ("" if about.interpolation == "area" else " without antialias")
    if not approximate:
        raise UserError(
            f"{to} says how images are resized, but cannot say {ours}, as this model's are: write "
            "--to=checkpoint. Or python -m vit_jax.convert --approximate, which writes what is "
            f"nearest, {instead} with antialias."
        )
    nearest = dataclasses.replace(about, interpolation=instead, antialias=True)
    return nearest, f"its images are resized by {instead} with antialias instead of {ours}."


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


def _differing(spec: Any, layout: Layout) -> list[str]:
    """Fields whose implied value differs, where no scale compensates for it."""
    return [
        field
        for field, theirs in layout.computes.items()
        if getattr(spec, field) != theirs and not (field == _EPSILON and _scalable(spec, layout))
    ]


def _is_close(spec: Any, layout: Layout, differing: Collection[str]) -> bool:
    """Whether only epsilons differ, and are small in both."""
    if not {_EPSILON, _OF, _NORM}.issuperset(differing):
        return False
    epsilons = [x for f in (_EPSILON, _NORM) for x in (getattr(spec, f), layout.computes[f])]
    return max(epsilons) <= MAX_APPROXIMATE_EPSILON


def _change_of_kernels(params: Mapping[str, np.ndarray], spec: Any, layout: Layout) -> float:
    """The largest relative change of standardised kernels."""
    largest = 0.0
    for name, kernel in params.items():
        if is_standardized(name):
            variance = np.var(kernel, axis=(-4, -3, -2), dtype=np.float64)  # [..., k, k, I, O]
            ours = _divisor(variance, spec.weight_epsilon, spec.weight_epsilon_of)
            theirs = _divisor(variance, layout.computes[_EPSILON], layout.computes[_OF])
            change = np.abs(ours / theirs - 1)[variance > 0]  # else it is 0 in both
            largest = max(largest, float(change.max(initial=0)))
    return largest


def _divisor(variance: np.ndarray, epsilon: float, epsilon_of: str) -> np.ndarray:
    if epsilon_of == "variance":
        return np.sqrt(variance + epsilon)
    return np.sqrt(variance) + epsilon
