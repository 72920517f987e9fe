"""Which model is worth its compute: frontiers of loss over exaFLOPs, and the best for a budget.

A model's frontier is what its trainings reach with at most so much compute; between two of them it
is interpolated, as a straight line over the logarithms of both. A budget below a model's cheapest
training says nothing about it; above its last improvement it stays where it is.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

_STEPS = 400  # of budgets, where the best model is looked for


class Frontier(NamedTuple):
    """Trainings that no cheaper one is as good as, [n] each, from the cheapest on.

    Attributes:
      points: the number of each among the points that were given.
      most: the largest exaFLOPs that were given, of which the training may not be one of these.
    """

    exaflops: np.ndarray
    loss: np.ndarray
    points: np.ndarray
    most: float

    def at(self, budget: float) -> float:
        """The loss at a budget in exaFLOPs; infinite below the cheapest training."""
        if budget < self.exaflops[0]:
            return np.inf
        logs = np.interp(np.log(budget), np.log(self.exaflops), _log(self.loss))
        return float(np.exp(logs))

    def beside(self, budget: float) -> tuple[int, ...]:
        """The points, by number, that `at` goes between, or the one that it takes."""
        above = int(np.searchsorted(self.exaflops, budget * (1 + 1e-12)))
        near = self.points[max(above - 1, 0) : above + 1]
        exact = bool(np.isclose(self.exaflops[max(above - 1, 0)], budget, rtol=1e-9, atol=0))
        return tuple(int(i) for i in (near[:1] if exact else near))


class Optimum(NamedTuple):
    """The best model for a budget.

    Attributes:
      budget: in exaFLOPs.
      model: None: no training of the study is as cheap.
      loss: the model's at that budget.
      between: the points, by number, that this was interpolated between; one: it is that.
      beyond: the budget is above all trainings of the study, so that a larger or longer one, which
        was not tried, would be better.
    """

    budget: float
    model: str | None
    loss: float = np.nan
    between: tuple[int, ...] = ()
    beyond: bool = False


def frontier(exaflops: ArrayLike, loss: ArrayLike) -> Frontier:
    """The frontier of points [n], n > 0."""
    cost, losses = np.asarray(exaflops, float), np.asarray(loss, float)
    order = np.lexsort((losses, cost))
    least = np.minimum.accumulate(losses[order])
    first = np.append(True, least[1:] < least[:-1])
    kept = order[first]
    return Frontier(cost[kept], losses[kept], kept, float(cost.max()))


def by_model(models: Sequence[str], exaflops: ArrayLike, loss: ArrayLike) -> dict[str, Frontier]:
    """The frontier of each model, by its label [n], in the order in which they come."""
    made = {}
    for model in dict.fromkeys(models):
        mine = np.flatnonzero([each == model for each in models])
        found = frontier(np.asarray(exaflops, float)[mine], np.asarray(loss, float)[mine])
        made[model] = found._replace(points=mine[found.points])
    return made


def optimum(frontiers: Mapping[str, Frontier], budget: float) -> Optimum:
    """The model whose frontier is the lowest at a budget; of equal ones the first."""
    losses = {model: each.at(budget) for model, each in frontiers.items()}
    model = min(losses, key=losses.__getitem__, default=None)
    if model is None or not np.isfinite(losses[model]):
        return Optimum(budget, None)
    most = max(each.most for each in frontiers.values())
    between = frontiers[model].beside(budget)
    return Optimum(budget, model, losses[model], between, budget > most * (1 + 1e-9))


class Stretch(NamedTuple):
    """Budgets in exaFLOPs, from `low` to `high`, for which one model is the best."""

    low: float
    high: float
    model: str


def stretches(frontiers: Mapping[str, Frontier]) -> list[Stretch]:
    """Which model is the best from the cheapest training of the study to the last improvement."""
    low = min(float(each.exaflops[0]) for each in frontiers.values())
    high = max(float(each.exaflops[-1]) for each in frontiers.values())
    points = np.concatenate([each.exaflops for each in frontiers.values()])
    budgets = np.unique(np.append(np.geomspace(low, high, _STEPS), points))
    budgets = np.clip(budgets, low, high)
    found: list[Stretch] = []
    for budget in budgets:
        model = optimum(frontiers, float(budget)).model
        if model is None:
            continue
        if found and found[-1].model == model:
            found[-1] = found[-1]._replace(high=float(budget))
        else:
            if found:
                found[-1] = found[-1]._replace(high=float(budget))
            found.append(Stretch(float(budget), float(budget), model))
    return found


def _log(loss: np.ndarray) -> np.ndarray:
    """Logarithms; of an error of 0 that of a very small one."""
    return np.log(np.maximum(loss, 1e-12))
