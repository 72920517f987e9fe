"""Published curves of a recipe: one run each, so they give no range that a run should be in.

A JSON file in cards/published has the recipe's config, the source, the name of the number in our
logs, and its values by epoch.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from etils import epath

from vit_jax.core.errors import UserError


@dataclasses.dataclass(frozen=True)
class PublishedCurve:
    """A curve that others measured.

    Attributes:
      config: its file, with its variant.
      source: where it is published.
      metric: its key in our logs, "validation/accuracy".
      epochs: the epochs after which it was measured, rising.
      values: of the metric.
    """

    config: str
    source: str
    metric: str
    epochs: list[float]
    values: list[float]


class CurvePoint(NamedTuple):
    """A published number beside the run's."""

    epoch: float
    theirs: float
    ours: float


def read(path: epath.Path) -> PublishedCurve:
    """The curve in a file. UserError if there is none, or a damaged one."""
    try:
        curve = PublishedCurve(**json.loads(path.read_text()))
        numbers = np.asarray([curve.epochs, curve.values], np.float64)  # ragged: ValueError
        if numbers.size == 0 or np.any(np.diff(numbers[0]) <= 0):
            raise ValueError("its epochs do not rise")
        return curve
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise UserError(
            f"{path} is not an intact published curve ({type(error).__name__}: {error})."
        ) from error


def compare(
    curve: PublishedCurve, rows: Mapping[int, Mapping[str, float | None]], steps_per_epoch: float
) -> list[CurvePoint]:
    """Compares published numbers with a run's, interpolated between its evaluations.

    rows: by step. Points before the run's first evaluation and after its last are left out.
    """
    logged = {step: row[curve.metric] for step, row in rows.items() if curve.metric in row}
    finite = {step: value for step, value in sorted(logged.items()) if value is not None}
    if not finite:
        return []
    epochs = np.asarray(list(finite)) / steps_per_epoch
    # A step is whole, an epoch of the plan need not be: half a step belongs to it.
    first, last = epochs[0] - 0.5 / steps_per_epoch, epochs[-1] + 0.5 / steps_per_epoch
    return [
        CurvePoint(epoch, theirs, float(np.interp(epoch, epochs, list(finite.values()))))
        for epoch, theirs in zip(curve.epochs, curve.values, strict=True)
        if first <= epoch <= last
    ]
