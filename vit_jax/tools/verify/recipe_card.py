"""Recipe cards: recorded runs of a config, and whether another run agrees with them.

A card is a JSON file with the losses and the evaluations that runs of several seeds logged, and the
rule by which a further run is compared:

- A curve of training is cut into windows of neighbouring steps, whose mean is compared: the loss of
  a single batch says little. Each evaluation is a window of its own. The spread between the seeds,
  as a share of their mean, is pooled over the windows next to each other, since three numbers alone
  estimate a spread badly.
- A number must be within mean +- max(sigmas * spread * sqrt(1 + 1 / seeds), floor * mean): the
  prediction interval of one more run, and what other devices and versions may differ by.
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
from vit_jax.core.errors import UserError, describe_error
from vit_jax.core.schema import renamed
from vit_jax.store import runs, workdir

LOSS = "train/loss"
MIN_SEEDS = 3
FEW = 4  # windows: fewer estimate a spread badly

Rows = Mapping[int, Mapping[str, float | None]]  # numbers by step; None if not finite


class LoggedRun(NamedTuple):
    folder: epath.Path
    fields: dict[str, Any]  # nested fields that a card has
    fingerprint: dict[str, str]
    origin: dict[str, Any]  # seed, time, versions, commit, devices
    rows: Rows


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """The allowed distance of a run from those of a card."""

    windows: int = 5  # number of windows of a curve of training
    neighbours: int = 4  # windows on each side that a window's spread is pooled with
    # For 4 or more pooled windows. With 3 seeds the spread has 8 degrees of freedom or more, and
    # Student's t stays within 5 in 99.9 % of all cases; batches under mixup, whose losses have
    # heavier tails, leave it more often.
    sigmas: float = 5.0
    # For fewer windows; with 2 degrees of freedom t stays within 10 in 99 %.
    few_sigmas: float = 10.0
    floor: float = 0.01  # share of the mean that is allowed in any case


@dataclasses.dataclass(frozen=True)
class Curve:
    """Values of a metric in each run, at the steps at which all runs logged it."""

    steps: list[int]
    runs: list[list[float]]


@dataclasses.dataclass(frozen=True)
class Card:
    """The record of several runs of a config."""

    config: str  # file of the config, with its variant
    fields: dict[str, Any]  # nested fields that affect the numbers, except the seed
    fingerprint: dict[str, str]  # fingerprint of the data
    runs: list[dict[str, Any]]  # seed, time, versions, commit and devices of each run
    curves: dict[str, Curve]  # curves by metric, with LOSS among them
    tolerance: Tolerance

    @property
    def end(self) -> int:
        return self.curves[LOSS].steps[-1]

    def write(self, path: epath.Path) -> None:
        """Writes the card as JSON, the numbers of a list on one line."""
        text = json.dumps(dataclasses.asdict(self), indent=1)
        text = re.sub(r"\[[-+.,e\d\s]*\]", lambda match: " ".join(match[0].split()), text)
        workdir.write_output(path, text + "\n", "record")


def read(path: epath.Path) -> Card:
    """Reads a card, and checks what a comparison takes from it."""
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
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise UserError(f"cannot be read: {describe_error(error)}", field=str(path)) from error


class Comparison(NamedTuple):
    """A number of a run, None if it is not finite, at the last step of its window; its range."""

    step: int
    metric: str
    value: float | None
    low: float
    high: float

    @property
    def is_within(self) -> bool:
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
    """Records LOSS and `metrics` of several runs of one config, with 6 digits."""
    seeds = [run.origin["seed"] for run in runs]
    if len(set(seeds)) < max(MIN_SEEDS, len(seeds)):
        rule = f"have the seeds {', '.join(map(str, seeds))}, not {MIN_SEEDS} different ones."
        raise UserError(rule, field="The runs")
    curves = {metric: _curve(metric, runs) for metric in (LOSS, *metrics)}
    origins = [run.origin for run in runs]
    return Card(config, fields, runs[0].fingerprint, origins, curves, Tolerance())


def _curve(metric: str, runs: Sequence[LoggedRun]) -> Curve:
    """The steps at which all runs logged it, the last step of each among them."""
    logged = [run.rows for run in runs]
    steps = sorted(step for step in logged[0] if all(metric in r.get(step, {}) for r in logged))
    values = [[rows[step][metric] for step in steps] for rows in logged]
    ends = {max(rows, default=0) for rows in logged}
    if ends != {*steps[-1:]} or None in (x for each in values for x in each):
        steps_ = ", ".join(map(str, sorted(ends)))
        rule = f"have a {metric} that is not finite, or end at different steps ({steps_})."
        raise UserError(rule, field="The runs", cure="Finish them.")
    return Curve(steps, [[rounded(x) for x in each if x is not None] for each in values])


def rounded(value: float) -> float:
    return float(f"{value:.6g}")


def same_until(card: Card, seed: int, rows: Rows) -> int:
    """The last step up to which a run's losses equal those of the card's run of its seed; or 0."""
    curve, last = card.curves[LOSS], 0
    seeds = [run["seed"] for run in card.runs]
    losses = curve.runs[seeds.index(seed)] if seed in seeds else []
    for step, loss in zip(curve.steps, losses, strict=False):
        value = rows.get(step, {}).get(LOSS)
        if value is None or rounded(value) != loss:
            break
        last = step
    return last


# Fields in which the runs of a card may differ, besides those that do not affect the numbers.
FREE_FIELDS = (*configs.FREE_FIELDS, "seed", "deterministic")


def read_run(folder: epath.Path) -> LoggedRun:
    document = workdir.read_document(folder)
    logged = runs.rows_by_step(folder)
    with workdir.explain_damage(folder / workdir.CONFIG_FILE):
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
    """Differing fields, such as "optim.lr: 0.003 there, 0.001 here"; "here" is the run."""
    # A field that was added after a card was recorded had its default.
    expected = {"config": compared_fields(configs.resolve(fields)), "fingerprint": fingerprint}
    actual = {"config": run.fields, "fingerprint": run.fingerprint}
    return list(workdir.differences(expected, actual).values())
