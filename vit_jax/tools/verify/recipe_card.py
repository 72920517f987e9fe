"""Recipe cards: recorded runs of a config, and whether another run agrees with them.

A card is a JSON file with the losses and the evaluations that runs of several seeds logged, and the
rule by which a further run is compared:

- A curve of training is cut into windows of neighbouring steps, whose mean is compared: the loss of
  a single batch says little. Each evaluation is a window of its own. The spread between the seeds,
  as a share of their mean, is pooled over the windows next to each other, since three numbers alone
  estimate a spread badly.
- A number must be within mean +- max(sigmas * spread * sqrt(1 + 1 / seeds), floor * mean): the
  prediction interval of one more run, and what other devices and versions may differ by.

Curves that others have published (cards/published) are of one run each, so they give no range that
a run should be in. Their JSON files have the recipe's config, the source, the name of the number in
our logs, and its values by epoch.
"""

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from vit_jax import config as configs
from vit_jax.config import RunConfig
from vit_jax.core.errors import UserError
from vit_jax.core.schema import renamed
from vit_jax.store import runs, workdir

LOSS = "train/loss"
MIN_SEEDS = 3
FEW = 4  # windows: fewer estimate a spread badly

Rows = Mapping[int, Mapping[str, float | None]]  # what was logged, by step; None: not finite


class LoggedRun(NamedTuple):
    """A run as its work directory records it.

    Attributes:
      fields: nested, those that a card has.
      origin: seed, time, versions, commit, devices.
      rows: numbers by step.
    """

    folder: epath.Path
    fields: dict[str, Any]
    fingerprint: dict[str, str]
    origin: dict[str, Any]
    rows: dict[int, dict[str, float | None]]


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """The allowed distance of a run from those of a card.

    Attributes:
      windows: number of windows that a curve of training is cut into.
      neighbours: windows on each side that a window's spread is pooled with.
      sigmas: for 4 or more pooled windows. With 3 seeds the spread has 8 degrees of freedom
        or more, and Student's t stays within 5 in 99.9 % of all cases; batches under mixup, whose
        losses have heavier tails, leave it more often.
      few_sigmas: for fewer windows; with 2 degrees of freedom t stays within 10 in 99 %.
      floor: share of the mean that is allowed in any case.
    """

    windows: int = 5
    neighbours: int = 4
    sigmas: float = 5.0
    few_sigmas: float = 10.0
    floor: float = 0.01


@dataclasses.dataclass(frozen=True)
class Curve:
    """A metric over the steps.

    Attributes:
      steps: those at which all runs logged it, in order.
      runs: its values at these steps, a list for each run.
    """

    steps: list[int]
    runs: list[list[float]]


@dataclasses.dataclass(frozen=True)
class Card:
    """The record of several runs of a config.

    Attributes:
      config: its file, with its variant.
      fields: nested, those that affect the numbers, except the seed.
      fingerprint: of the data.
      runs: seed, time, versions, commit and devices of each.
      curves: by metric; LOSS is one of them.
      tolerance: see above.
    """

    config: str
    fields: dict[str, Any]
    fingerprint: dict[str, str]
    runs: list[dict[str, Any]]
    curves: dict[str, Curve]
    tolerance: Tolerance

    @property
    def end(self) -> int:
        """The last step of the runs."""
        return self.curves[LOSS].steps[-1]

    def write(self, path: epath.Path) -> None:
        """Writes the card. UserError if the file cannot be written."""
        text = json.dumps(dataclasses.asdict(self), indent=1)
        # Numbers of one list on one line.
        text = re.sub(r"\[[-+.,e\d\s]*\]", lambda match: " ".join(match[0].split()), text)
        workdir.write_output(path, text + "\n", "record")


def read(path: epath.Path) -> Card:
    """The card in a file. UserError if there is none, or a damaged one."""
    if not path.exists():
        raise UserError(f"No recipe card {path}.")
    try:
        document = json.loads(path.read_text())
        document["fields"] = renamed.fields(document["fields"])
        curves = renamed.metrics(document.pop("curves"))
        curves = {metric: Curve(**curve) for metric, curve in curves.items()}
        tolerance = Tolerance(**document.pop("tolerance"))
        card = Card(**document, curves=curves, tolerance=tolerance)
        if not card.runs or LOSS not in curves or not isinstance(card.fields, dict):
            raise ValueError("it has no runs, no losses or no fields")
        for run in card.runs:
            _ = run["seed"], run["versions"]["jax"], run["devices"]["count"], run["devices"]["kind"]
        for metric, curve in curves.items():
            values = np.asarray([curve.steps, *curve.runs], np.float64)  # ragged: ValueError
            if values.size == 0 or len(curve.runs) != len(card.runs):
                raise ValueError(f"{metric} has not one curve for each run")
        if any(not number > 0 for number in dataclasses.astuple(tolerance)):
            raise ValueError("its tolerance has numbers that are not above 0")
        return card
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(
            f"{path} is not an intact recipe card ({type(error).__name__}: {error}). Restore it, "
            "or record a new one."
        ) from error


class Comparison(NamedTuple):
    """A number of a run and the range that it should be in.

    Attributes:
      step: the last one that counted for `value`.
      value: None: not finite.
    """

    step: int
    metric: str
    value: float | None
    low: float
    high: float

    @property
    def is_within(self) -> bool:
        """Whether the value is in the card's range."""
        return self.value is not None and self.low <= self.value <= self.high


def compare(card: Card, rows: Rows) -> list[Comparison]:
    """All comparisons, by step; windows of which a step was not logged are left out."""
    comparisons = [
        c for metric, curve in card.curves.items() for c in _windows(card, metric, curve, rows)
    ]
    return sorted(comparisons, key=lambda comparison: comparison.step)


def _windows(card: Card, metric: str, curve: Curve, rows: Rows) -> Iterator[Comparison]:
    t, seeds = card.tolerance, len(curve.runs)
    points = len(curve.steps)
    of_batches = metric.startswith("train/")
    windows = np.array_split(np.arange(points), min(t.windows, points) if of_batches else points)
    means = np.stack([np.mean(np.asarray(curve.runs)[:, w], axis=1) for w in windows])
    centres = np.mean(means, axis=1)
    relative = np.var(means, axis=1, ddof=1) / np.maximum(np.abs(centres), 1e-30) ** 2
    for i, window in enumerate(windows):
        steps = [curve.steps[k] for k in window]
        if all(metric in rows.get(step, {}) for step in steps):
            near = relative[max(0, i - t.neighbours) : i + t.neighbours + 1]
            sigmas = t.sigmas if len(near) >= FEW else t.few_sigmas
            share = max(sigmas * float(np.sqrt(np.mean(near) * (1 + 1 / seeds))), t.floor)
            most = share * abs(float(centres[i]))
            low = max(0.0, float(centres[i]) - most)  # no metric is negative
            values = [rows[step][metric] for step in steps]
            finite = [value for value in values if value is not None]
            value = float(np.mean(finite)) if len(finite) == len(values) else None
            yield Comparison(steps[-1], metric, value, low, float(centres[i]) + most)


def record(
    config: str, fields: dict[str, Any], runs: Sequence[LoggedRun], metrics: Sequence[str]
) -> Card:
    """A card of several runs of one config; numbers keep 6 digits.

    Of their logs LOSS and `metrics` are recorded. Raises UserError for too few seeds, runs of
    different lengths, and numbers that are missing.
    """
    seeds = [run.origin["seed"] for run in runs]
    logged = [run.rows for run in runs]
    if len(set(seeds)) < max(MIN_SEEDS, len(seeds)):
        raise UserError(
            f"The runs have the seeds {', '.join(map(str, seeds))}: a card needs at least "
            f"{MIN_SEEDS}, all different."
        )
    ends = [max(rows, default=0) for rows in logged]
    if len(set(ends)) > 1:
        raise UserError(f"The runs end at the steps {', '.join(map(str, ends))}: finish them all.")
    curves = {metric: _curve(metric, logged) for metric in (LOSS, *metrics)}
    for metric, curve in curves.items():
        if curve.steps[-1:] != ends[:1]:
            raise UserError(f"Not every run has logged {metric} at its last step, {ends[0]}.")
    origins = [run.origin for run in runs]
    return Card(config, fields, runs[0].fingerprint, origins, curves, Tolerance())


def _curve(metric: str, logged: Sequence[Rows]) -> Curve:
    steps = sorted(step for step in logged[0] if all(metric in r.get(step, {}) for r in logged))
    return Curve(steps, [[_number(rows, step, metric) for step in steps] for rows in logged])


def _number(rows: Rows, step: int, metric: str) -> float:
    value = rows[step][metric]
    if value is None:
        raise UserError(f"A run has no finite {metric} at step {step}: it cannot be recorded.")
    return rounded(value)


def rounded(value: float) -> float:
    """The number with the digits that a card keeps."""
    return float(f"{value:.6g}")


def same_until(card: Card, seed: int, rows: Rows) -> int:
    """The last step up to which a run's losses equal those of the card's run of its seed; or 0."""
    last = 0
    for run, losses in zip(card.runs, card.curves[LOSS].runs, strict=True):
        if run["seed"] == seed:
            for step, loss in zip(card.curves[LOSS].steps, losses, strict=True):
                value = rows.get(step, {}).get(LOSS)
                if value is None or rounded(value) != loss:
                    break
                last = step
    return last


# Fields in which the runs of a card may differ, besides those that do not affect the numbers.
FREE_FIELDS = (*configs.FREE_FIELDS, "seed", "deterministic")


def read_run(folder: epath.Path) -> LoggedRun:
    """The run in a work directory. UserError if the folder is not one, or is damaged."""
    document = workdir.read_document(folder)
    logged = runs.rows_by_step(folder)
    with runs.explain_damage(folder):
        config = configs.resolve(document["config"])
        started = document["runs"][-1]
        origin = {name: started[name] for name in ("time", "versions", "commit", "devices")}
        rows = {
            step: {name: None if x is None else float(x) for name, x in row.items()}
            for step, row in logged.items()
        }
    origin = {"seed": config.seed, **origin}
    return LoggedRun(folder, compared_fields(config), document["fingerprint"], origin, rows)


def compared_fields(config: RunConfig) -> dict[str, Any]:
    """Fields in which the runs of a card agree, nested."""
    fields = configs.to_dict(config)
    for name in FREE_FIELDS:
        *sections, last = name.split(".")
        nested = [fields]
        for part in sections:
            nested = [x for f in nested for x in (f.values() if part == "*" else [f[part]])]
        for section in nested:
            section.pop(last, None)  # not every method has a teacher
    return fields


def differences(fields: dict[str, Any], fingerprint: dict[str, str], run: LoggedRun) -> list[str]:
    """What differs, such as "optim.lr: 0.003 there, 0.001 here"; "there" is not the run."""
    # A field that was added after a card was recorded had its default.
    there = {"config": compared_fields(configs.resolve(fields)), "fingerprint": fingerprint}
    here = {"config": run.fields, "fingerprint": run.fingerprint}
    return list(workdir.differences(there, here).values())


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


def read_published(path: epath.Path) -> PublishedCurve:
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


def compare_published(
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
