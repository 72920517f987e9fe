"""The parts of a training step."""

from collections.abc import Callable
from typing import Any, NamedTuple

from jax.sharding import Mesh

from vit_jax.config import RunConfig
from vit_jax.optim.schedules import Schedule
from vit_jax.run import problems
from vit_jax.run.parts import updates
from vit_jax.run.parts.durations import Durations, durations
from vit_jax.run.parts.networks import Model, model
from vit_jax.training.objective import Objective
from vit_jax.training.state import StateLayout
from vit_jax.training.step import make_update


class StepParts(NamedTuple):
    """The parts of a step; shapes and shardings only."""

    durations: Durations
    model: Model
    schedule: Schedule
    layout: StateLayout
    objective: Objective


def step_parts(
    config: RunConfig,
    mesh: Mesh,
    *,
    num_examples: int,
    num_classes: int,
    look: problems.Look = problems.at_once,
) -> StepParts:
    """The parts of a step on `mesh`, each made by `look`; nothing is allocated."""
    steps = look("plan", durations, config, num_examples=num_examples)
    network = look("model", model, config, num_classes=num_classes)
    schedule = look("optim", updates.schedule, config.optim, steps)
    layout = look("optim", updates.layout, config, network.make, schedule, mesh)
    objective = look("loss", updates.objective, config, num_classes=num_classes)
    return StepParts(steps, network, schedule, layout, objective)


def update(config: RunConfig, parts: StepParts) -> Callable[..., Any]:
    """The function of (state, batch) that a run compiles."""
    rates = updates.rates(config.optim, parts.schedule)
    return make_update(parts.layout, parts.objective, rates, config.seed)
