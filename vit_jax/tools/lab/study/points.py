"""The points of a study: cost and scores of each combination of values, seeds taken together.

The cost is known before a training starts: no data are read if the config declares their numbers.
"""

import functools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from vit_jax import models
from vit_jax.core.arrays import RGB, Pixels
from vit_jax.core.errors import ErrorCollector, UserError
from vit_jax.core.metric_names import is_less_better
from vit_jax.models import ModelInfo
from vit_jax.parallel.products import Products
from vit_jax.run.parts import examples, inputs, networks, updates
from vit_jax.run.parts.durations import make_durations
from vit_jax.tools.lab.sweep import grid, progress
from vit_jax.tools.lab.sweep.grid import CONFIG, Point, distinct_names, raise_wrong, short
from vit_jax.tools.lab.sweep.progress import PointProgress

FAMILIES = ("ViT", "hybrid", "ResNet")
EXA = 1e18
_FIELDS_OF_COST = (CONFIG, "model.", "input.subset_fraction", "total.")  # of a point
_STATES = ("failed", "running", "waiting", "finished")  # the first that a seed has is the point's


class Cost(NamedTuple):
    model: ModelInfo  # its figures
    products: Products  # FLOPs that its method computes for one example
    family: str  # one of FAMILIES
    examples: int  # different examples that it trains on
    examples_seen: int  # steps x batch size
    num_classes: int  # of the labels

    @property
    def exaflops(self) -> float:
        """ExaFLOPs of training: those of an example x examples seen / 1e18, as in plans."""
        return self.products.training * self.examples_seen / EXA


def costs(points: Sequence[Point]) -> dict[str, Cost]:
    """The costs of points, by name, of examples and classes that the config or the data declare."""
    errors, made = ErrorCollector(), {}
    # Data and models take seconds to look at, and many points share them.
    known: dict[str, Any] = {}
    for point in points:
        made[point.name] = errors.attempt(
            f"{grid.format_values(point.values)}: ", _cost, point, known
        )
    raise_wrong(errors)
    return made


def _cost(point: Point, known: dict[str, Any]) -> Cost:
    config = point.load()
    c = config.input
    data = repr((c, config.model.channels))
    if data not in known:
        number, classes = examples.declared_examples(c), c.num_classes
        pixels = Pixels(config.model.channels or RGB.channels)
        if number is None or classes is None:
            source = examples.source(c)
            number, classes, pixels = source.num_examples, source.num_classes, source.pixels
        known[data] = number, classes, pixels
    number, classes, pixels = known[data]
    architecture = networks.architecture(config.model, config.init, config.loss.exclusive)
    made_from = (architecture, networks.preprocess(c, config.evals), config.lora, classes, pixels)
    key = repr((*made_from, config.method, c.views, c.batch_size))
    if key not in known:
        made = networks.model(config, num_classes=classes, pixels=pixels)
        mesh = inputs.mesh(config.mesh)
        teacher = updates.teacher(config.method, config.model, c, mesh, classes, ())
        known[key] = made.info, updates.products(config, made, teacher)
    model, products = known[key]
    seen = make_durations(config, num_examples=number).total_steps * c.batch_size
    return Cost(model, products, family(model.name), number, seen, classes)


def family(name: str) -> str:
    """The family of a model's name, one of FAMILIES."""
    kind = models.kind(name)
    return next(family for family in FAMILIES if family in kind)


def label(point: Point, cost: Cost, config_names: Mapping[str, str]) -> str:
    """The model of a point as people call it: what the grid says of it, else its name."""
    parts = []
    for field, value in point.values.items():
        if field == CONFIG:
            parts.append(config_names[value])
        elif field == "model.name":
            parts.append(value)
        elif field.startswith("model."):
            parts.append(f"{field.removeprefix('model.')} {value}")
    return ", ".join(parts) or cost.model.name


def _variant(config: str) -> str:
    name, _, variant = short(CONFIG, config).partition(":")
    return variant or name


class StudyPoint(NamedTuple):
    values: dict[str, str]  # by field, as the grid spells them, without the seed
    model: str  # as people call it
    cost: Cost
    state: str  # finished if all seeds have finished
    # Means over the finished seeds, by name; those that are not finite are left out.
    numbers: dict[str, float]
    seeds: int  # how many have finished
    trainings: int  # how many there are
    why: str = ""  # of trainings that have failed

    @property
    def title(self) -> str:
        """ "ViT-Ti/16, optim.lr=1e-3": the model, and the values that its cost does not tell."""
        others = (f"{f}={v}" for f, v in self.values.items() if not f.startswith(_FIELDS_OF_COST))
        return ", ".join([self.model, *others])

    @property
    def name(self) -> str:
        """ "ViT-Ti/16, 1,437 examples, 14,370 seen"."""
        cost = self.cost
        return f"{self.title}, {cost.examples:,} examples, {cost.examples_seen:,} seen"


def collect(rows: Sequence[PointProgress], costs: Mapping[str, Cost]) -> list[StudyPoint]:
    """The points of a sweep, in its order; `costs` by the names of its points."""
    points = []
    configs = list(dict.fromkeys(row.point.all_values[CONFIG] for row in rows))
    config_names = distinct_names(configs, _variant, functools.partial(short, CONFIG))
    for values, members in progress.group_by_values(rows):
        cost = costs[members[0].point.name]
        finished = [row for row in members if row.state == "finished"]
        names = dict.fromkeys(name for row in finished for name in row.numbers)
        points.append(
            StudyPoint(
                values,
                label(members[0].point, cost, config_names),
                cost,
                min((row.state for row in members), key=_STATES.index),
                {name: mean for name in names if (mean := _mean(name, finished)) is not None},
                len(finished),
                len(members),
                "; ".join(row.reason.splitlines()[0] for row in members if row.reason),
            )
        )
    return points


def _mean(name: str, rows: Sequence[PointProgress]) -> float | None:
    """Over the rows, if it is finite in all of them."""
    values = [row.numbers.get(name, math.nan) for row in rows]
    return statistics.mean(values) if all(map(math.isfinite, values)) else None


def scored(points: Sequence[StudyPoint], metric: str) -> dict[int, float]:
    """Losses of the finished points that have the metric, by place; of accuracies 1 - accuracy."""
    losses = {
        i: as_loss(metric, point.numbers[metric])
        for i, point in enumerate(points)
        if point.state == "finished" and metric in point.numbers
    }
    if not losses and (known := progress.evaluation_keys(points)):
        raise progress.UnknownMetric(metric, known)
    for i, loss in losses.items():
        if loss < 0:
            rule = f"is {points[i].numbers[metric]:g} for {points[i].name}."
            cure = "Give an accuracy, from 0 to 1, or a loss or error, whose name says so."
            raise UserError(rule, field="--metric", value=metric, cure=cure)
    return losses


def as_loss(metric: str, value: Any) -> Any:
    """Converts a metric, or an array, to a loss, lower where it is better; or back again."""
    return value if is_less_better(metric) else 1 - value
