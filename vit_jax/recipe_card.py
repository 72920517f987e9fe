"""Recipe cards: how the runs of a config went, and whether another run goes like them.

A card is a JSON file with the losses that runs of several seeds logged, their final metrics, and
the rule by which a further run is compared:

- The curve is cut into windows of neighbouring logged steps, whose mean is compared: the loss of a
  single batch says little. The spread between the seeds, as a share of their mean, is pooled over
  the windows next to each other, since three numbers alone estimate a spread badly.
- Found must be within mean +- max(sigmas * spread * sqrt(1 + 1 / seeds), floor * mean): the
  prediction interval of one more run, and what other devices and versions may differ by.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from vit_jax.core.errors import UserError
from vit_jax.store import atomic_file

CURVE = "train/loss"
MIN_SEEDS = 3

Rows = Mapping[int, Mapping[str, float | None]]  # what was logged, by step; None: not finite


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """How far a run may be from those of a card.

    Attributes:
      windows: that the curve is cut into.
      neighbours: windows on each side that a window's spread is pooled with.
      curve_sigmas: at 3 seeds and 3 neighbours the spread has 14 degrees of freedom, and Student's
        t stays within 4 in 99.87 % of all cases.
      final_sigmas: here it has 2, and t stays within 10 in 99 %.
      floor: share of the mean that is allowed in any case.
    """

    windows: int = 10
    neighbours: int = 3
    curve_sigmas: float = 4.0
    final_sigmas: float = 10.0
    floor: float = 0.01


@dataclasses.dataclass(frozen=True)
class Card:
    """What is recorded of a config.

    Attributes:
      config: its file, with its variant.
      fields: nested, those that touch the numbers, but the seed.
      fingerprint: of the data.
      runs: seed, time, versions, commit and devices of each.
      steps: those that all runs logged, in order; the last one ends the run.
      losses: CURVE at these steps, a list for each run.
      final: metrics by name after the last step, a number for each run.
      tolerance: see above.
    """

    config: str
    fields: dict[str, Any]
    fingerprint: dict[str, str]
    runs: list[dict[str, Any]]
    steps: list[int]
    losses: list[list[float]]
    final: dict[str, list[float]]
    tolerance: Tolerance

    def write(self, path: epath.Path) -> None:
        """UserError if it cannot."""
        text = json.dumps(dataclasses.asdict(self), indent=1)
        # Numbers of one list on one line.
        text = re.sub(r"\[[-+.,e\d\s]*\]", lambda found: " ".join(found[0].split()), text)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic_file.write_text(path, text + "\n")
        except OSError as error:
            raise UserError(f"{path} cannot be written: {error.strerror}.") from error


def read(path: epath.Path) -> Card:
    """The card in a file. UserError if there is none, or a damaged one."""
    if not path.exists():
        raise UserError(f"No recipe card {path}.")
    try:
        document = json.loads(path.read_text())
        tolerance = Tolerance(**document.pop("tolerance"))
        return Card(**document, tolerance=tolerance)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{path} is no recipe card: {error}.") from error


class Comparison(NamedTuple):
    """A number of a run and the range that it should be in.

    Attributes:
      step: the last one that counted for `found`.
      found: None: not finite.
    """

    step: int
    metric: str
    found: float | None
    low: float
    high: float

    @property
    def is_within(self) -> bool:
        """Whether the run goes like those of the card."""
        return self.found is not None and self.low <= self.found <= self.high


def compare(card: Card, rows: Rows) -> list[Comparison]:
    """All that can be compared, in order; windows of which a step was not logged are left out."""
    t, done = card.tolerance, []
    windows = np.array_split(np.arange(len(card.steps)), min(t.windows, len(card.steps)))
    means = np.stack([np.mean(np.asarray(card.losses)[:, w], axis=1) for w in windows])
    relative = np.var(means, axis=1, ddof=1) / np.maximum(np.mean(means, axis=1), 1e-30) ** 2
    for i, window in enumerate(windows):
        steps = [card.steps[k] for k in window]
        if all(CURVE in rows.get(step, {}) for step in steps):
            near = relative[max(0, i - t.neighbours) : i + t.neighbours + 1]
            spread = float(np.mean(means[i]) * np.sqrt(np.mean(near)))
            low, high = _range(means[i], spread, t.curve_sigmas, t.floor)
            found = _mean([rows[step][CURVE] for step in steps])
            done.append(Comparison(steps[-1], CURVE, found, low, high))
    end = card.steps[-1]
    for metric, values in card.final.items():
        if metric in rows.get(end, {}):
            spread = float(np.std(values, ddof=1))
            low, high = _range(np.asarray(values), spread, t.final_sigmas, t.floor)
            done.append(Comparison(end, metric, rows[end][metric], low, high))
    return done


def _range(values: np.ndarray, spread: float, sigmas: float, floor: float) -> tuple[float, float]:
    """[seeds] -> the lowest and the highest value of one more run."""
    mean = float(np.mean(values))
    most = max(sigmas * spread * float(np.sqrt(1 + 1 / len(values))), floor * abs(mean))
    return mean - most, mean + most


def _mean(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return float(np.mean(numbers)) if len(numbers) == len(values) else None


def record(
    config: str,
    fields: dict[str, Any],
    fingerprint: dict[str, str],
    runs: Sequence[Mapping[str, Any]],
    logged: Sequence[Rows],
    final_metrics: Sequence[str],
) -> Card:
    """A card of several runs of one config; of the numbers 6 digits are kept.

    `runs` say where each comes from, "seed" among it; `logged` is what each logged. Raises
    UserError for too few seeds, runs of different lengths, and numbers that are missing.
    """
    seeds = [run["seed"] for run in runs]
    if len(set(seeds)) < max(MIN_SEEDS, len(seeds)):
        raise UserError(
            f"The runs have the seeds {', '.join(map(str, seeds))}: a card needs at least "
            f"{MIN_SEEDS}, all different."
        )
    ends = [max(rows, default=0) for rows in logged]
    if len(set(ends)) > 1:
        raise UserError(f"The runs end at the steps {', '.join(map(str, ends))}: finish them all.")
    curves = [{step for step, row in rows.items() if CURVE in row} for rows in logged]
    steps = sorted(set.intersection(*curves))
    if not steps or steps[-1] != ends[0]:
        raise UserError(f"No run has logged {CURVE} at its last step: there is nothing to record.")
    return Card(
        config=config,
        fields=fields,
        fingerprint=fingerprint,
        runs=[dict(run) for run in runs],
        steps=steps,
        losses=[[_number(rows, step, CURVE) for step in steps] for rows in logged],
        final={m: [_number(rows, steps[-1], m) for rows in logged] for m in final_metrics},
        tolerance=Tolerance(),
    )


def _number(rows: Rows, step: int, metric: str) -> float:
    value = rows[step].get(metric)
    if value is None:
        raise UserError(f"A run has no finite {metric} at step {step}: it cannot be recorded.")
    return float(f"{value:.6g}")
