"""What a study found: on the screen, in results.json and results.csv."""

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from vit_jax.core.files import write_text
from vit_jax.core.screen import aligned, format_count
from vit_jax.core.tables import csv_text
from vit_jax.probes import scaling_law
from vit_jax.store import workdir
from vit_jax.tools.lab.study import frontier, points
from vit_jax.tools.lab.study.frontier import Frontier, Optimum, Stretch
from vit_jax.tools.lab.study.laws import FittedCurve, curves, fitted
from vit_jax.tools.lab.study.points import StudyPoint
from vit_jax.tools.lab.sweep import progress

JSON_FILE, CSV_FILE = "results.json", "results.csv"


class StudyResult(NamedTuple):
    """What came out.

    Attributes:
      config: the config file.
      metric: the number that stands for a training's result.
      points: all of them, those that have not finished too.
      scored: the points, by number, and their losses, of those that have.
      frontiers: of each model.
      stretches: which model is the best, over the study's range of compute.
      optima: the best model for each budget.
      laws: the frontier's and the models'.
    """

    config: str
    metric: str
    points: list[StudyPoint]
    scored: list[tuple[int, float]]
    frontiers: dict[str, Frontier]
    stretches: list[Stretch]
    optima: list[Optimum]
    laws: list[FittedCurve]

    @property
    def best(self) -> list[int]:
        """The points, by number, that no other one is as good as for as little compute."""
        if not self.scored:
            return []
        places, losses = zip(*self.scored, strict=True)
        best = frontier.frontier([self.points[i].cost.exaflops for i in places], losses)
        return [places[i] for i in best.points]

    @property
    def failures(self) -> list[str]:
        """Why points did not finish."""
        return [f"{each.name}: {each.why}" for each in self.points if each.why]

    def shown(self, loss: float) -> str:
        """A loss as the metric it stands for, as tables show it."""
        return progress.shown_number(self.metric, points.as_loss(self.metric, loss))


def result(
    config: str,
    found: list[StudyPoint],
    metric: str,
    form: str,
    budgets: Sequence[float],
) -> StudyResult:
    """Frontiers, optima and laws of points, by one metric. UserError as `points.scored`."""
    scored = points.scored(found, metric)
    places = [next(i for i, p in enumerate(found) if p is each.point) for each in scored]
    frontiers, ranges = {}, list[Stretch]()
    if scored:
        frontiers = frontier.by_model(
            [each.point.model for each in scored],
            [each.point.cost.exaflops for each in scored],
            [each.loss for each in scored],
        )
        frontiers = {
            model: each._replace(points=np.array(places)[each.points])
            for model, each in frontiers.items()
        }
        ranges = frontier.stretches(frontiers)
    optima = [frontier.optimum(frontiers, budget) for budget in budgets]
    chance = _chance(metric, found)
    laws = [fitted(curve, form, chance=chance) for curve in curves(scored)]
    numbered = [(place, each.loss) for place, each in zip(places, scored, strict=True)]
    return StudyResult(config, metric, found, numbered, frontiers, ranges, optima, laws)


def _chance(metric: str, found: Sequence[StudyPoint]) -> float:
    """M4's loss without data: 1 for error rates, as its authors; else of a guess at all classes."""
    if progress.is_better_high(metric) or "error" in metric:
        return 1.0
    classes = [np.log(max(each.cost.num_classes, 2)) for each in found]
    return float(max(classes, default=1.0))


def write(folder: epath.Path, made: StudyResult) -> None:
    """Writes results.json and results.csv. UserError if it cannot."""
    try:
        write_text(folder / JSON_FILE, json.dumps(as_json(made), indent=2) + "\n")
        write_text(folder / CSV_FILE, as_csv(made))
    except OSError as error:
        raise workdir.unwritable(folder, error) from error


def as_json(made: StudyResult) -> dict[str, Any]:
    """All of it, for programs; a number that is not finite is null."""
    names = [each.name for each in made.points]
    return {
        "config": made.config,
        "metric": made.metric,
        "points": [_point(each) for each in made.points],
        "frontiers": {
            model: [
                {"point": names[i], "exaflops": float(x), "loss": float(loss)}
                for x, loss, i in zip(each.exaflops, each.loss, each.points, strict=True)
            ]
            for model, each in made.frontiers.items()
        },
        "best_model": [each._asdict() for each in made.stretches],
        "budgets": [
            {
                **each._asdict(),
                "loss": _finite(each.loss),
                "between": [names[i] for i in each.between],
            }
            for each in made.optima
        ],
        "laws": [_law(each) for each in made.laws],
    }


def _point(point: StudyPoint) -> dict[str, Any]:
    return {
        "name": point.name,
        **_size(point),
        "values": point.values,
        "state": point.state,
        "seeds": point.seeds,
        "why": point.why,
        "numbers": {name: point.numbers[name] for name in points.evaluated([point])},
    }


def _size(point: StudyPoint) -> dict[str, Any]:
    cost = point.cost
    return {
        "model": point.model,
        "family": cost.family,
        "parameters": cost.model.parameters,
        "examples": cost.examples,
        "examples_seen": cost.examples_seen,
        "exaflops": cost.exaflops,
    }


def _law(each: FittedCurve) -> dict[str, Any]:
    law, interval = each.law, each.interval
    document: dict[str, Any] = {
        "curve": each.curve.name,
        "over": each.curve.over,
        "points": {"x": each.curve.x.tolist(), "loss": each.curve.loss.tolist()},
        "why_not": each.why,
    }
    if law is None or interval is None:
        return document
    numbers = {
        name: _finite(getattr(law, name))
        for name in ("log_scale", "exponent", "irreducible", "chance", "alpha", "shift", "limit")
    }
    drawn = {
        "x": each.x.tolist(),
        "loss": interval.loss.tolist(),
        "low": [_finite(x) for x in interval.low],
        "high": [_finite(x) for x in interval.high],
        "extrapolated": each.extrapolated.tolist(),
    }
    return document | {"form": law.form, "level": scaling_law.LEVEL, **numbers, "drawn": drawn}


def _finite(number: float) -> float | None:
    return float(number) if math.isfinite(number) else None


def as_csv(made: StudyResult) -> str:
    """A row for each point: its values, size, state and all numbers of its evaluations."""
    fields, names = list(made.points[0].values), points.evaluated(made.points)
    rows: list[list[Any]] = [[*fields, *_size(made.points[0]), "state", "seeds", *names]]
    for each in made.points:
        values = [each.values[field] for field in fields]
        numbers = [each.numbers.get(name, "") for name in names]
        rows.append([*values, *_size(each).values(), each.state, each.seeds, *numbers])
    return csv_text(rows)


def cost_lines(found: Sequence[StudyPoint]) -> Iterator[str]:
    """A table of what each point costs, and the sum."""
    rows = [
        [each.title, *sizes(each), "" if each.state == "waiting" else each.state] for each in found
    ]
    head = ["model", *SIZES, ""]
    yield from aligned(head, rows, left={0, len(head) - 1})


SIZES = ("parameters", "examples", "seen", "exaFLOPs")


def sizes(point: StudyPoint) -> list[str]:
    """Cells of a table below SIZES."""
    cost = point.cost
    return [
        format_count(cost.model.parameters),
        f"{cost.examples:,}",
        f"{cost.examples_seen:,}",
        f"{cost.exaflops:.3g}",
    ]


def lines(made: StudyResult) -> Iterator[str]:
    """What a person reads at the end."""
    losses = dict(made.scored)
    kept = set(made.best)
    rows = [
        [
            each.title,
            *sizes(each),
            made.shown(losses[i]) if i in losses else "-",
            "frontier" if i in kept else "" if each.state == "finished" else each.state,
        ]
        for i, each in enumerate(made.points)
    ]
    head = ["model", *SIZES, made.metric, ""]
    yield from aligned(head, rows, left={0, len(head) - 1})
    for low, high, model in made.stretches:
        yield f"best     {low:.3g} to {high:.3g} exaFLOPs: {model}"
    for each in made.optima:
        yield f"budget   {optimum_line(made, each)}"
    for law in made.laws:
        yield f"law      {law_line(made, law)}"


def optimum_line(made: StudyResult, each: Optimum) -> str:
    """The best model for a budget, and where it comes from."""
    if each.model is None:
        least = min((made.points[i].cost.exaflops for i, _ in made.scored), default=math.inf)
        why = f"less than any training that has finished ({least:.3g})"
        return f"{each.budget:.3g} exaFLOPs: {why if made.scored else 'no training has finished'}"
    between = " and ".join(made.points[i].name for i in each.between)
    how = "interpolated between" if len(each.between) > 1 else "that of"
    beyond = "; more than any training of the study, so not the best" if each.beyond else ""
    return (
        f"{each.budget:.3g} exaFLOPs: {each.model}, {made.metric} {made.shown(each.loss)}, {how} "
        f"{between}{beyond}"
    )


def law_line(made: StudyResult, each: FittedCurve) -> str:
    """The law of a curve, with its extrapolation marked as one."""
    over = "exaFLOPs" if each.curve.over == "exaflops" else each.curve.over
    what = f"{each.curve.name} over {over}"
    end = f"{each.x[-1]:.3g}" if each.curve.over == "exaflops" else f"{each.x[-1]:,.0f}"
    if each.law is None or each.interval is None:
        return f"{what}: none. {each.why}"
    loss, low, high = (float(values[-1]) for values in each.interval)
    ends = sorted((low, high), reverse=progress.is_better_high(made.metric))
    interval = (
        f" ({made.shown(ends[0])} to {made.shown(ends[1])})"
        if math.isfinite(low)
        else ", no interval: as many points as parameters"
    )
    limit = f", limit {made.shown(each.law.limit)}" if each.law.limit > 0 else ""
    return (
        f"{what}: {each.law.form}, exponent {each.law.exponent:.3g}{limit}; extrapolated to "
        f"{end}: {made.shown(loss)}{interval}"
    )
