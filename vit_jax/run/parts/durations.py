"""The length of a run, and when its events are due."""

import dataclasses
from collections.abc import Callable

from etils import epath

from vit_jax.config import OptimConfig, RunConfig, TotalConfig
from vit_jax.core import errors
from vit_jax.learning.clock import Cadence


@dataclasses.dataclass(frozen=True)
class Durations:
    """The length of a run; whether something is due at or after a step, by its number."""

    total_steps: int
    warmup_steps: int
    cooldown_steps: int
    steps_per_epoch: float
    log: Cadence  # a row
    save: Cadence  # a checkpoint
    histograms: Callable[[int], bool]
    shows_batch: Callable[[int], bool]  # whether its batch is drawn
    skips: Callable[[int], bool]  # whether its batch is left out (input.skip_steps)

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

    total_steps = steps(config.total) or 0
    if not 1 <= total_steps < 2**31:
        raise errors.UserError(
            f"total.* means {total_steps} steps of {batch_size} examples: give one of "
            "total.steps, total.epochs, total.examples."
        )
    for field, named, last in (
        ("log.profile_at_step", [config.log.profile_at_step or 0], total_steps - 1),
        ("input.skip_steps", config.input.skip_steps, total_steps),
    ):
        if later := [step for step in named if step > last]:
            rule = f"is beyond step {last:,}: total.* means {total_steps:,}."
            raise errors.UserError(rule, field=field, value=later[0])
    skips = frozenset(config.input.skip_steps)
    every = config.log.histograms_every_steps
    has_histograms = Cadence(every, total_steps)
    return Durations(
        total_steps=total_steps,
        warmup_steps=steps(optim, "warmup_") or 0,
        cooldown_steps=steps(optim, "cooldown_") or 0,
        steps_per_epoch=num_examples / batch_size,
        log=Cadence(config.log.every_steps, total_steps),
        save=Cadence(config.checkpoint.every_steps, total_steps),
        histograms=lambda step: bool(every) and step not in skips and has_histograms(step),
        shows_batch=frozenset({1} if config.log.first_batch else ()).__contains__,
        skips=skips.__contains__,
    )
