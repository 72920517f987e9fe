"""Results of a study: frontiers, scaling laws, results.json and results.csv.

A model's frontier is what its trainings reach with at most so much compute; between two of them it
is interpolated, as a straight line over the logarithms of both. A budget below a model's cheapest
training says nothing about it; above its last improvement it stays where it is.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from vit_jax.core.errors import UserError
from vit_jax.core.metric_names import is_less_better, readable, words
from vit_jax.core.screen import aligned, format_count, format_significant
from vit_jax.core.tables import for_json
from vit_jax.probes import scaling_law
from vit_jax.probes.scaling_law import Interval, ScalingLaw
from vit_jax.tools.lab.study import points
from vit_jax.tools.lab.study.points import StudyPoint
from vit_jax.tools.lab.sweep import progress

FRONTIER = "all models"
BEYOND = 10.0  # times the largest x of a curve, as far as its law is drawn
_STEPS = 400  # of budgets, where the best model is looked for
_DRAWN = 41  # losses of a law


class Frontier(NamedTuple):
    """Trainings that no cheaper one is as good as, [n] each, from the cheapest on."""

    exaflops: np.ndarray
    loss: np.ndarray
    points: np.ndarray  # the number of each in the study
    most: float  # the largest exaFLOPs of all, of which the training may not be one of these

    def loss_at(self, budget: float) -> float:
        """The loss at a budget in exaFLOPs; infinite below the cheapest training."""
        if budget < self.exaflops[0]:
            return np.inf
        logs = np.interp(np.log(budget), np.log(self.exaflops), _log(self.loss))
        return float(np.exp(logs))

    def neighbours(self, budget: float) -> tuple[int, ...]:
        """The points, by number, that `loss_at` goes between, or the one that it takes."""
        above = int(np.searchsorted(self.exaflops, budget * (1 + 1e-12)))
        near = self.points[max(above - 1, 0) : above + 1]
        exact = bool(np.isclose(self.exaflops[max(above - 1, 0)], budget, rtol=1e-9, atol=0))
        return tuple(int(i) for i in (near[:1] if exact else near))


class Optimum(NamedTuple):
    budget: float  # in exaFLOPs
    model: str | None  # None: no training of the study is as cheap
    loss: float = np.nan  # the model's at that budget
    # The points, by number, that this was interpolated between; one: it is that.
    between: tuple[int, ...] = ()
    # The budget is above all trainings of the study, so that a larger or longer one, which was not
    # tried, would be better.
    beyond: bool = False


def frontier(exaflops: Sequence[float], losses: Mapping[int, float]) -> Frontier:
    """The frontier of the points that `losses` has, by number; `exaflops` are of all points."""
    numbers, loss = np.array([*losses], int), np.array([*losses.values()])
    cost = np.asarray(exaflops)[numbers]
    order = np.lexsort((loss, cost))
    kept = order[np.diff(np.minimum.accumulate(loss[order]), prepend=np.inf) < 0]
    return Frontier(cost[kept], loss[kept], numbers[kept], float(cost.max(initial=0)))


def optimum(frontiers: Mapping[str, Frontier], budget: float) -> Optimum:
    """The model whose frontier is the lowest at a budget; of equal ones the first."""
    losses = {model: curve.loss_at(budget) for model, curve in frontiers.items()}
    model = min(losses, key=losses.__getitem__, default=None)
    if model is None or not np.isfinite(losses[model]):
        return Optimum(budget, None)
    most = max(curve.most for curve in frontiers.values())
    between = frontiers[model].neighbours(budget)
    return Optimum(budget, model, losses[model], between, budget > most * (1 + 1e-9))


class Stretch(NamedTuple):
    """Budgets in exaFLOPs, from `low` to `high`, for which one model is the best."""

    low: float
    high: float
    model: str


def stretches(frontiers: Mapping[str, Frontier]) -> list[Stretch]:
    """Returns the best models, from the cheapest training of the study to the last improvement."""
    costs = np.concatenate([curve.exaflops for curve in frontiers.values()])
    low, high = costs.min(), costs.max()
    budgets = np.unique(np.append(np.geomspace(low, high, _STEPS), costs)).clip(low, high)
    ranges: list[Stretch] = []
    for budget in map(float, budgets):
        model = optimum(frontiers, budget).model
        if ranges:
            ranges[-1] = ranges[-1]._replace(high=budget)
        if model is not None and (not ranges or ranges[-1].model != model):
            ranges.append(Stretch(budget, budget, model))
    return ranges


def _log(loss: np.ndarray) -> np.ndarray:
    """Logarithms; of an error of 0 that of a very small one."""
    return np.log(np.maximum(loss, 1e-12))


class Curve(NamedTuple):
    """Losses [n] over x [n], ascending."""

    name: str  # FRONTIER, or a model
    over: str  # "exaflops" or "examples"
    x: np.ndarray
    loss: np.ndarray


class FittedCurve(NamedTuple):
    curve: Curve
    law: ScalingLaw | None  # None if it has none, and `why`
    x: np.ndarray  # where it is drawn [N], from the curve's first to BEYOND times its last
    interval: Interval  # the law at x; NaN where there is none, and `why`
    why: str = ""  # "" if all went well

    @property
    def extrapolated(self) -> np.ndarray:
        """[N] bool: which x are beyond the curve's points."""
        return self.x > self.curve.x[-1] * (1 + 1e-9)


def best_by_examples(study_points: Sequence[StudyPoint], losses: Mapping[int, float]) -> list[int]:
    """The best of the points that `losses` has on each number of examples, from the fewest on."""
    best: dict[int, int] = {}
    for i in sorted(losses, key=losses.__getitem__):
        best.setdefault(study_points[i].cost.examples, i)
    return [best[examples] for examples in sorted(best)]


def fit_curve(curve: Curve, form: str, *, chance: float) -> FittedCurve:
    """The curve with its law and interval, or why it has none."""
    x = np.geomspace(curve.x[0], BEYOND * curve.x[-1], _DRAWN)
    nothing = np.full(len(x), np.nan)
    law, interval, why = None, Interval(nothing, nothing, nothing), ""
    try:
        law = scaling_law.fit(curve.x, curve.loss, form, chance=chance)
        interval = interval._replace(loss=law(x))
        interval = scaling_law.interval(law, curve.x, curve.loss, x, chance=chance)
    except UserError as error:
        why = str(error)
    return FittedCurve(curve, law, x, interval, why)


class StudyResult(NamedTuple):
    config: str  # the config file
    metric: str  # the number that stands for a training's result
    points: list[StudyPoint]  # all of them, those that have not finished too
    models: dict[str, dict[int, float]]  # losses of the points that have, by number, of each model
    frontier: Frontier  # of all models
    frontiers: dict[str, Frontier]  # of each model
    stretches: list[Stretch]  # which model is the best, over the study's range of compute
    optima: list[Optimum]  # the best model for each budget
    laws: list[FittedCurve]  # the frontier's and the models'
    failures: Sequence[str] = ()  # trainings that were asked for and did not finish

    @property
    def scored(self) -> dict[int, float]:
        """The losses of the points that have finished, by number."""
        return {i: loss for losses in self.models.values() for i, loss in losses.items()}

    def shown(self, loss: float) -> str:
        """A loss as the metric it stands for, as a column of all points shows it."""
        losses = [points.as_loss(self.metric, x) for x in self.scored.values()]
        return progress.format_number(self.metric, points.as_loss(self.metric, loss), losses)


def analyse(
    config: str, study_points: list[StudyPoint], metric: str, form: str, budgets: Sequence[float]
) -> StudyResult:
    """Frontiers, optima and laws of points, by one metric."""
    scored = points.scored(study_points, metric)
    models: dict[str, dict[int, float]] = {}
    for i, loss in scored.items():
        models.setdefault(study_points[i].model, {})[i] = loss
    exaflops = [point.cost.exaflops for point in study_points]
    best = frontier(exaflops, scored)
    frontiers = {model: frontier(exaflops, losses) for model, losses in models.items()}
    curves = [Curve(FRONTIER, "exaflops", best.exaflops, best.loss)] if scored else []
    for model, losses in models.items():
        numbers = best_by_examples(study_points, losses)
        x = np.array([study_points[i].cost.examples for i in numbers], float)
        curves.append(Curve(model, "examples", x, np.array([losses[i] for i in numbers])))
    chance = _chance(metric, study_points)
    ranges = stretches(frontiers) if frontiers else []
    optima = [optimum(frontiers, budget) for budget in budgets]
    laws = [fit_curve(curve, form, chance=chance) for curve in curves]
    return StudyResult(config, metric, study_points, models, best, frontiers, ranges, optima, laws)


def _chance(metric: str, study_points: Sequence[StudyPoint]) -> float:
    """M4's loss without data: 1 for error rates, as its authors; else of a guess at all classes."""
    if not is_less_better(metric) or "error" in metric:
        return 1.0
    classes = [np.log(max(point.cost.num_classes, 2)) for point in study_points]
    return float(max(classes, default=1.0))


def as_json(result: StudyResult) -> dict[str, Any]:
    """Returns everything, for JSON; a number that is not finite is None."""
    names = [point.name for point in result.points]
    document = {
        "config": result.config,
        "metric": result.metric,
        "points": [
            {"name": point.name, **_size(point), "values": point.values, "state": point.state}
            | {"seeds": point.seeds, "why": point.why}
            | {"numbers": {key: point.numbers[key] for key in progress.evaluation_keys([point])}}
            for point in result.points
        ],
        "frontiers": {
            model: [
                {"point": names[i], "exaflops": x, "loss": loss}
                for x, loss, i in zip(curve.exaflops, curve.loss, curve.points, strict=True)
            ]
            for model, curve in result.frontiers.items()
        },
        "best_model": result.stretches,
        "budgets": [
            best._asdict() | {"between": [names[i] for i in best.between]} for best in result.optima
        ],
        "laws": [_law(fit) for fit in result.laws],
    }
    return for_json(document)


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


def _law(fit: FittedCurve) -> dict[str, Any]:
    pairs = {"x": fit.curve.x, "loss": fit.curve.loss}
    document: dict[str, Any] = {"curve": fit.curve.name, "over": fit.curve.over, "points": pairs}
    document["why_not"] = fit.why
    if fit.law is None:
        return document
    drawn = {"x": fit.x, **fit.interval._asdict(), "extrapolated": fit.extrapolated}
    law = {**fit.law._asdict(), "limit": fit.law.limit, "level": scaling_law.LEVEL}
    return {**document, **law, "drawn": drawn}


def table(result: StudyResult) -> list[list[Any]]:
    """Rows of results.csv: a head, then values, size, state and numbers of each point."""
    fields, names = list(result.points[0].values), progress.evaluation_keys(result.points)
    head = [*fields, *_size(result.points[0]), "state", "seeds", *names]
    rows = [p.values | _size(p) | p._asdict() | p.numbers for p in result.points]
    return [head, *([row.get(name, "") for name in head] for row in rows)]


HEAD = ("model", "family", "parameters", "examples", "seen", "exaFLOPs", "state", "seeds")


def point_rows(study_points: Sequence[StudyPoint]) -> list[list[str]]:
    """Rows of a table below HEAD: what each point is and costs."""
    rows = []
    for point in study_points:
        cost, seeds = point.cost, str(point.seeds)
        parameters, exaflops = (
            format_count(cost.model.parameters),
            format_significant(cost.exaflops),
        )
        number, seen = f"{cost.examples:,}", f"{cost.examples_seen:,}"
        rows.append(
            [point.title, cost.family, parameters, number, seen, exaflops, point.state, seeds]
        )
    return rows


def result_rows(result: StudyResult) -> list[list[str]]:
    """The same, with the metric and whether the point is on the frontier behind."""
    best, losses = set(result.frontier.points.tolist()), result.scored
    return [
        [*row, result.shown(losses[i]) if i in losses else "-", "frontier" if i in best else ""]
        for i, row in enumerate(point_rows(result.points))
    ]


def lines(result: StudyResult) -> Iterator[str]:
    """Yields the lines that the command prints at its end."""
    head = [*HEAD, result.metric, ""]
    yield from aligned(head, result_rows(result), left={0, 1, 6, len(head) - 1})
    for low, high, model in result.stretches:
        yield f"best     {format_significant(low)} to {format_significant(high)} exaFLOPs: {model}"
    for best in result.optima:
        yield f"budget   {describe_optimum(result, best)}"
    if result.laws:
        yield from aligned(LAWS, laws(result), left={0, 1, 2, len(LAWS) - 1})


def describe_optimum(result: StudyResult, best: Optimum) -> str:
    if best.model is None:
        costs = result.frontier.exaflops
        why = "no training has finished"
        if len(costs):
            why = f"less than any training that has finished ({format_significant(costs[0])})"
        return f"{format_significant(best.budget)} exaFLOPs: {why}"
    between = " and ".join(result.points[i].name for i in best.between)
    how = "interpolated between" if len(best.between) > 1 else "that of"
    beyond = "; more than any training of the study, so not the best" if best.beyond else ""
    return (
        f"{format_significant(best.budget)} exaFLOPs: {best.model}, {words(result.metric)} "
        f"{result.shown(best.loss)}, {how} {between}{beyond}"
    )


LAWS = ("law of", "over", "form", "exponent", "limit", "extrapolated to", "gives", "interval", "")


def laws(result: StudyResult) -> list[list[str]]:
    """Cells of a table below LAWS; the last one says why there is no law or interval."""
    exponents = [fit.law.exponent for fit in result.laws if fit.law]
    rows = []
    for curve, law, x, interval, why in result.laws:
        over_compute = curve.over == "exaflops"
        head = [curve.name, "exaFLOPs" if over_compute else curve.over]
        if law is None:
            rows.append([*head, "none", *[""] * 5, why])
            continue
        loss, low, high = (float(values[-1]) for values in interval)
        ends = sorted((low, high), reverse=not is_less_better(result.metric))
        limit = result.shown(law.limit) if law.limit > 0 else ""
        last_x = format_significant(x[-1]) if over_compute else f"{x[-1]:,.0f}"
        between = ["", "no interval: as many points as parameters"]
        if math.isfinite(low):
            between = [" to ".join(map(result.shown, ends)), ""]
        exponent = readable("exponent", law.exponent, exponents)
        rows.append([*head, law.form, exponent, limit, last_x, result.shown(loss), *between])
    return rows
