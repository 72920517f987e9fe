"""The points of a study: cost and scores of each combination of values, seeds taken together."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from vit_jax.core.errors import UserError, nearest
from vit_jax.store.metrics_file import RESERVED
from vit_jax.tools.lab.study.cost import Cost, label
from vit_jax.tools.lab.sweep import progress
from vit_jax.tools.lab.sweep.grid import CONFIG
from vit_jax.tools.lab.sweep.progress import PointProgress
from vit_jax.tools.lab.sweep.results import SEED

_TOLD = (CONFIG, "model.", "input.subset_fraction", "total.")  # by a point's model and its cost
_STATES = ("failed", "running", "waiting", "finished")  # the first that a seed has is the point's


class StudyPoint(NamedTuple):
    """Trainings that differ in their seed alone.

    Attributes:
      values: by field, as the grid spells them, without the seed.
      model: as people call it.
      state: finished if all seeds have finished.
      numbers: means over the finished seeds, by name; those that are not finite are left out.
      seeds: how many have finished.
      why: of trainings that have failed.
    """

    values: dict[str, str]
    model: str
    cost: Cost
    state: str
    numbers: dict[str, float]
    seeds: int
    why: str = ""

    @property
    def title(self) -> str:
        """ "ViT-Ti/16, optim.lr=1e-3": the model, and the values that its cost does not tell."""
        others = (f"{f}={v}" for f, v in self.values.items() if not f.startswith(_TOLD))
        return ", ".join([self.model, *others])

    @property
    def name(self) -> str:
        """ "ViT-Ti/16, 1,437 examples, 14,370 seen"."""
        cost = self.cost
        return f"{self.title}, {cost.examples:,} examples, {cost.examples_seen:,} seen"


class Scored(NamedTuple):
    """A finished point and its loss."""

    point: StudyPoint
    loss: float


def collect(rows: Sequence[PointProgress], costs: Mapping[str, Cost]) -> list[StudyPoint]:
    """The points of a sweep, in its order; `costs` by the names of its points."""
    groups: dict[tuple[tuple[str, str], ...], list[PointProgress]] = {}
    for row in rows:
        values = tuple((f, v) for f, v in row.point.values.items() if f != SEED)
        groups.setdefault(values, []).append(row)
    points = []
    for values, members in groups.items():
        cost = costs[members[0].point.name]
        finished = [row for row in members if row.state == "finished"]
        names = dict.fromkeys(name for row in finished for name in row.numbers)
        points.append(
            StudyPoint(
                dict(values),
                label(members[0].point, cost),
                cost,
                min((row.state for row in members), key=_STATES.index),
                {name: mean for name in names if (mean := _mean(name, finished)) is not None},
                len(finished),
                "; ".join(row.reason.splitlines()[0] for row in members if row.reason),
            )
        )
    return points


def _mean(name: str, rows: Sequence[PointProgress]) -> float | None:
    """Over the rows, if it is finite in all of them."""
    values = [row.numbers.get(name, math.nan) for row in rows]
    return statistics.mean(values) if all(map(math.isfinite, values)) else None


def evaluated(points: Sequence[StudyPoint]) -> list[str]:
    """The names of the numbers that evaluations gave, and of the training loss."""
    names = dict.fromkeys(name for point in points for name in point.numbers)
    return [n for n in names if n == progress.LOSS or n.partition("/")[0] not in RESERVED]


def scored(points: Sequence[StudyPoint], metric: str) -> list[Scored]:
    """The finished points with a number of that metric, as losses: 1 - accuracy for accuracies.

    UserError: no point has it; it is higher where it is better, and above 1.
    """
    there = [point for point in points if point.state == "finished" and metric in point.numbers]
    if not there:
        if known := evaluated(points):
            raise UserError(f"--metric={metric}: no point has it. {nearest(metric, known)}")
        return []
    losses = [Scored(point, as_loss(metric, point.numbers[metric])) for point in there]
    wrong = [each for each in losses if each.loss < 0]
    if wrong:
        raise UserError(
            f"--metric={metric} is {wrong[0].point.numbers[metric]:g} for {wrong[0].point.name}: "
            "give an accuracy, between 0 and 1, or a loss or error, whose name says so."
        )
    return losses


def as_loss(metric: str, value: float) -> float:
    """A number as one that is lower where it is better; the same turns it back."""
    return 1 - value if progress.is_better_high(metric) else value
