"""Learning rate by step: a warmup, a decay, a cooldown."""

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp

from vit_jax.core.errors import UserError
from vit_jax.core.schema import entry_points
from vit_jax.core.schema.fields import UP_TO_1, field

Schedule = Callable[[jax.Array | int], jax.Array]

# XLA divides by a constant by its rounded reciprocal: a whole quotient may come out below itself.
WHOLE = 1 + 2.0**-21


@dataclasses.dataclass(frozen=True)
class Decay:
    """What follows the warmup; each is a dataclass of its fields in the section `optim`."""

    # Whether it reaches zero, or `optim.lr_min`, without a cooldown.
    to_zero: ClassVar[bool] = False
    from_start: ClassVar[bool] = False  # whether steps of the warmup count too

    @entry_points.left_open
    def remains(self, done: jax.Array, steps: float, epoch_steps: float) -> jax.Array:
        """The share of peak - lr_min that is left, 1 at first, after `done` of a cycle's `steps`.

        epoch_steps: steps of an epoch; need not be whole.
        """
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Linear(Decay):
    """A line."""

    to_zero = True

    def remains(self, done: jax.Array, steps: float, epoch_steps: float) -> jax.Array:
        return 1.0 - done / steps


@dataclasses.dataclass(frozen=True)
class Cosine(Decay):
    """Half a period of a cosine."""

    to_zero = True

    def remains(self, done: jax.Array, steps: float, epoch_steps: float) -> jax.Array:
        return 0.5 * (1.0 + jnp.cos(jnp.pi * done / steps))


@dataclasses.dataclass(frozen=True)
class Constant(Decay):
    """The peak, for good."""

    def remains(self, done: jax.Array, steps: float, epoch_steps: float) -> jax.Array:
        return jnp.ones_like(done)


@dataclasses.dataclass(frozen=True)
class InverseRoot(Decay):
    """Not tied to the training's length (arXiv 2106.04560, section 3.5)."""

    rsqrt_timescale_steps: int = field(
        10_000, "after three of them `rsqrt` has halved the rate", bounds=(1, 2**31)
    )

    def remains(self, done: jax.Array, steps: float, epoch_steps: float) -> jax.Array:
        return 1.0 / jnp.sqrt(1.0 + done / self.rsqrt_timescale_steps)


@dataclasses.dataclass(frozen=True)
class Exponential(Decay):
    """As the released code of arXiv 1905.11946: in steps, and counted from the first update."""

    exponential_factor: float = field(
        0.97, "what `exponential` multiplies the rate by", bounds=(1e-6, UP_TO_1)
    )
    exponential_epochs: float = field(
        2.4, "how often: after every so many, those of the warmup included", bounds=(1e-6, 1e6)
    )
    from_start = True

    def remains(self, done: jax.Array, steps: float, epoch_steps: float) -> jax.Array:
        times = jnp.floor(done / (self.exponential_epochs * epoch_steps) * WHOLE)
        return self.exponential_factor**times


DECAYS = entry_points.Parts[type[Decay]](
    "schedules",
    {
        "linear": "vit_jax.learning.optim.schedules:Linear",
        "cosine": "vit_jax.learning.optim.schedules:Cosine",
        "constant": "vit_jax.learning.optim.schedules:Constant",
        "rsqrt": "vit_jax.learning.optim.schedules:InverseRoot",
        "exponential": "vit_jax.learning.optim.schedules:Exponential",
    },
)


# The fraction of the peak in a warmup: (step, its length, steps of an epoch) -> [].
WARMUPS: dict[str, Callable[[jax.Array, int, float], jax.Array]] = {
    "linear": lambda step, steps, _: step / steps,
    # As the code of arXiv 2104.05704: 1/5, 1/4, 1/3, 1/2, 1 in five epochs.
    "reciprocal": lambda step, steps, epoch: 1.0 / jnp.maximum(1.0, (steps - step) / epoch),
}


def schedule(
    decay: Decay,
    *,
    peak: float,
    lr_min: float = 0.0,
    warmup: str = "linear",
    warmup_lr: float = 0.0,
    warmup_steps: int,
    cooldown_steps: int,
    total_steps: int,
    steps_per_epoch: float = 1.0,
    by_epoch: bool = False,
    decay_from_start: bool = False,
    cycles: int = 1,
    cycle_decay: float = 1.0,
) -> Schedule:
    """Returns `lr(step)`: the learning rate of the update applied after `step` others.

    `step` counts from 0 and may be traced; the result is a float32 scalar. As in the released
    recipes, lr(0) is `warmup_lr`, usually 0, wherever there is a linear warmup (that first update
    only fills the optimizer's moments), lr(warmup_steps) is the peak, and lr(total_steps), which no
    update uses, is where a decay or cooldown reaches its end.

    Args:
      decay: what follows the warmup. One that counts from the start is below the peak by then.
      lr_min: where a decay that reaches zero ends.
      warmup_lr: the rate of the first update, of a linear warmup.
      cooldown_steps: multiplies the last rates by a line from 1 to 0; `linear` and `cosine` stay
        at lr_min for so long.
      steps_per_epoch: need not be whole.
      by_epoch: whether the rate of an epoch's first update is that of all of them.
      decay_from_start: whether the decay counts from the first update, as timm's, not from the end
        of the warmup.
      cycles: repeats the decay so often, in equal parts of the training (arXiv 1608.03983).
      cycle_decay: the factor from one cycle's peak to the next one's.
    """
    _check_fit(decay, warmup_steps, cooldown_steps, total_steps, ends_at_0=not lr_min)
    first = 0 if decay.from_start or decay_from_start else warmup_steps
    held = cooldown_steps if decay.to_zero else 0
    cycle_steps = max(1.0, (total_steps - first - held) / cycles)

    def decayed(step: jax.Array) -> jax.Array:
        done = jnp.clip(step - first, 0.0, cycle_steps * cycles)
        highest: jax.Array | float = peak
        if cycles > 1:
            cycle = jnp.minimum(jnp.floor(done / cycle_steps * WHOLE), cycles - 1)
            done -= cycle * cycle_steps
            highest = peak * cycle_decay**cycle
        return lr_min + (highest - lr_min) * decay.remains(done, cycle_steps, steps_per_epoch)

    def lr(step: jax.Array | int) -> jax.Array:
        step = jnp.asarray(step, jnp.float32)
        left = jnp.maximum(0.0, total_steps - step)
        if by_epoch:
            step = jnp.floor(step / steps_per_epoch * WHOLE) * steps_per_epoch
        rate = decayed(step)
        if warmup_steps:
            risen = WARMUPS[warmup](step, warmup_steps, steps_per_epoch)
            rising = warmup_lr + (peak - warmup_lr) * risen
            rate = jnp.where(step < warmup_steps, rising, rate)
        if cooldown_steps and not decay.to_zero:
            rate *= jnp.minimum(1.0, left / cooldown_steps)
        return rate

    return lr


def _check_fit(
    decay: Decay, warmup_steps: int, cooldown_steps: int, total_steps: int, *, ends_at_0: bool
) -> None:
    if warmup_steps > total_steps:
        raise UserError(
            f"optim.warmup_* means {warmup_steps} steps, more than total.*, {total_steps}."
        )
    if cooldown_steps and decay.to_zero and ends_at_0:
        others = ", ".join(name for name, one in DECAYS.items() if not one.to_zero)
        raise UserError(
            f"optim.cooldown_*: optim.schedule arrives at 0 by itself; {others} do not."
        )
    room = total_steps - warmup_steps
    if cooldown_steps > room:
        raise UserError(f"optim.cooldown_* means {cooldown_steps} steps, of which {room} fit.")
