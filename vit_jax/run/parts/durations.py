"""The length of a run, and when its events are due."""

import dataclasses
import math
from collections.abc import Callable

from etils import epath

from vit_jax.config import OptimConfig, RunConfig, TotalConfig
from vit_jax.core import errors
from vit_jax.learning.clock import Cadence


@dataclasses.dataclass(frozen=True)
class Durations:
    """The length of a run, and when its events are due, in steps.

    Attributes:
      log, save: a step's number -> whether it is followed by a row of the log, by a checkpoint.
      histograms: a step's number -> whether histograms are made of it.
      skips: a step's number -> whether its batch is left out (input.skip_steps).
    """

    total_steps: int
    warmup_steps: int
    cooldown_steps: int
    steps_per_epoch: float
    log: Cadence
    save: Cadence
    histograms: Callable[[int], bool]
    skips: Callable[[int], bool]

    def check_start(self, step: int, workdir: epath.Path) -> None:
        """Raises UserError if a run that is at `step` is already beyond this plan."""
        if step > self.total_steps:
            raise errors.UserError(
                f"{workdir} is at step {step:,}, but total.* amounts to {self.total_steps:,} "
                "steps: raise it, or give another --workdir."
            )


def make_durations(config: RunConfig, *, num_examples: int) -> Durations:
    """Durations in steps, rounded to the nearest whole one."""
    batch_size, optim = config.input.batch_size, config.optim

    def steps(section: TotalConfig | OptimConfig, prefix: str = "") -> int | None:
        units = {"steps": 1.0, "epochs": num_examples / batch_size, "examples": 1 / batch_size}
        given = [(getattr(section, prefix + unit), size) for unit, size in units.items()]
        some = [round(amount * size) for amount, size in given if amount is not None]
        return some[0] if some else None  # the config has at most one

    total_steps = steps(config.total)
    if total_steps is None:
        raise errors.UserError(
            "How long to train is not set: give one of total.steps, total.epochs, total.examples."
        )
    if not 1 <= total_steps < 2**31:
        raise errors.UserError(
            f"total.* amounts to {total_steps} steps of input.batch_size={batch_size} examples "
            f"(an epoch has {num_examples / batch_size:.4g}): give at least 1."
        )
    profile = config.log.profile_at_step
    if profile is not None and profile >= total_steps:
        raise errors.UserError(
            f"log.profile_at_step={profile} traces the steps after it, but total.* amounts to "
            f"{total_steps:,} steps: give less than that, or none."
        )
    never = [step for step in config.input.skip_steps if step > total_steps]
    if never:
        raise errors.UserError(
            f"input.skip_steps has {never[0]}, but total.* amounts to {total_steps} steps: give "
            "steps from 1 to that."
        )
    check_meets_saves("checkpoint.keep_every_steps", config.checkpoint.keep_every_steps, config)
    every = config.log.histograms_every_steps
    return Durations(
        total_steps=total_steps,
        warmup_steps=steps(optim, "warmup_") or 0,
        cooldown_steps=steps(optim, "cooldown_") or 0,
        steps_per_epoch=num_examples / batch_size,
        log=Cadence(config.log.every_steps, total_steps),
        save=Cadence(config.checkpoint.every_steps, total_steps),
        histograms=Cadence(every, total_steps) if every else lambda step: False,
        skips=frozenset(config.input.skip_steps).__contains__,
    )


def check_meets_saves(field: str, steps: int | None, config: RunConfig) -> None:
    """Raises UserError unless `steps` is a multiple of checkpoint.every_steps, or divides it."""
    every = config.checkpoint.every_steps
    if steps is not None and steps % every and every % steps:
        raise errors.UserError(
            f"{field}={steps} meets a checkpoint, which can be kept, only every "
            f"{math.lcm(steps, every):,} steps. Give a multiple of checkpoint.every_steps={every}, "
            f"such as {errors.nearest_multiple(steps, every)}."
        )
