"""What each training of a study costs, known before it starts: no data are read if declared."""

from collections.abc import Sequence
from typing import NamedTuple

from vit_jax import config as configs
from vit_jax import models
from vit_jax.config import RunConfig
from vit_jax.core.errors import NOT_MADE, ErrorCollector, UserError
from vit_jax.models import ModelInfo
from vit_jax.parallel.products import Products
from vit_jax.run.parts import examples, inputs, networks, teachers, updates
from vit_jax.run.parts.durations import make_durations
from vit_jax.tools.lab.sweep.grid import CONFIG, Point

FAMILIES = ("ViT", "hybrid", "ResNet")
EXA = 1e18


class Cost(NamedTuple):
    """The size of one training.

    Attributes:
      model: its figures.
      products: FLOPs that its method computes for one example.
      family: one of FAMILIES.
      examples: different examples that it trains on.
      steps: updates.
      examples_seen: steps x batch size.
      num_classes: of the labels.
    """

    model: ModelInfo
    products: Products
    family: str
    examples: int
    steps: int
    examples_seen: int
    num_classes: int

    @property
    def exaflops(self) -> float:
        """ExaFLOPs of training: those of an example x examples seen / 1e18, as in plans."""
        return self.products.training * self.examples_seen / EXA


def costs(points: Sequence[Point]) -> dict[str, Cost]:
    """The costs of points, by their names. UserError with all errors, each once.

    Examples and classes are those that the config declares, else those of the data.
    """
    errors, known, made = ErrorCollector(), _Known(), {}
    for point in points:
        said = ", ".join(f"{field}={value}" for field, value in point.values.items())
        cost = errors.attempt(said, _cost, point, known)
        if cost is not NOT_MADE:
            made[point.name] = cost
    if errors.found:
        lines = "".join(f"\n  {what}: {error}" for what, error in errors.found)
        raise UserError(f"Nothing was started: the grid is not right.{lines}")
    return made


class _Known:
    """What many points share: opening data and tracing a model take seconds."""

    def __init__(self) -> None:
        self._sizes: dict[str, tuple[int, int]] = {}
        self._models: dict[str, tuple[ModelInfo, Products]] = {}

    def sizes(self, config: RunConfig) -> tuple[int, int]:
        """Examples to train on, and classes."""
        c = config.input
        key = repr(c)
        if key not in self._sizes:
            num_examples, classes = examples.declared_examples(c), c.num_classes
            if num_examples is None or classes is None:
                source = examples.source(c)
                num_examples, classes = source.num_examples, source.num_classes
            self._sizes[key] = num_examples, classes
        return self._sizes[key]

    def model(self, config: RunConfig, classes: int) -> tuple[ModelInfo, Products]:
        """The model's figures, and what its method computes for an example."""
        of_model = (
            networks.architecture(config),
            networks.preprocess(config),
            config.lora,
            classes,
        )
        key = repr((*of_model, config.method, config.input.views, config.input.batch_size))
        if key not in self._models:
            model = networks.model(config, num_classes=classes)
            mesh = inputs.mesh(config.mesh)
            teacher = teachers.teacher(config, mesh, num_classes=classes, class_names=())
            self._models[key] = model.info, updates.products(config, model, teacher)
        return self._models[key]


def _cost(point: Point, known: _Known) -> Cost:
    config = configs.load(point.config, point.overrides)
    examples, classes = known.sizes(config)
    model, products = known.model(config, classes)
    steps = make_durations(config, num_examples=examples).total_steps
    seen = steps * config.input.batch_size
    return Cost(model, products, family(model.name), examples, steps, seen, classes)


def family(name: str) -> str:
    """The family of a model's name, one of FAMILIES."""
    kind = models.kind(name)
    return next(family for family in FAMILIES if family in kind)


def label(point: Point, cost: Cost) -> str:
    """The model of a point as people call it: what the grid says of it, else its name."""
    parts = []
    for field, value in point.values.items():
        if field == CONFIG:
            path, _, variant = value.partition(":")
            parts.append(variant or path.rpartition("/")[2].removesuffix(".py"))
        elif field == "model.name":
            parts.append(value)
        elif field.startswith("model."):
            parts.append(f"{field.removeprefix('model.')} {value}")
    return ", ".join(parts) or cost.model.name
