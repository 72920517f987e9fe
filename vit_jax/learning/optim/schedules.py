"""Learning rate by step: a warmup, one of five decays, a cooldown."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from vit_jax.core.errors import UserError

Schedule = Callable[[jax.Array | int], jax.Array]

# XLA divides by a constant by its rounded reciprocal: a whole quotient may come out below itself.
WHOLE = 1 + 2.0**-21


class Shape(NamedTuple):
    """Numbers that shape single decays."""

    rsqrt_timescale_steps: int
    exponential_factor: float
    exponential_steps: float


class Decay(NamedTuple):
    """The fraction of the peak left after `done` of the `whole` steps that follow the warmup."""

    remains: Callable[..., jax.Array]  # (done, whole, Shape) -> [], 1 at the start
    to_zero: bool  # whether it reaches zero, or the lowest rate, without a cooldown
    reads: tuple[str, ...] = ()  # fields of the section `optim`
    from_start: bool = False  # whether `done` and `whole` include the warmup


TO_LOWEST = ("lr_min", "decay_from_start", "cycles", "cycle_decay")

DECAYS = {
    "linear": Decay(lambda done, whole, _: 1.0 - done / whole, to_zero=True, reads=TO_LOWEST),
    "cosine": Decay(
        lambda done, whole, _: 0.5 * (1.0 + jnp.cos(jnp.pi * done / whole)),
        to_zero=True,
        reads=TO_LOWEST,
    ),
    "constant": Decay(lambda done, *_: jnp.ones_like(done), to_zero=False),
    # arXiv 2106.04560, section 3.5: not tied to the training's length.
    "rsqrt": Decay(
        lambda done, _, shape: 1.0 / jnp.sqrt(1.0 + done / shape.rsqrt_timescale_steps),
        to_zero=False,
        reads=("rsqrt_timescale_steps",),
    ),
    # As the released code of arXiv 1905.11946: in steps, and counted from the first update.
    "exponential": Decay(
        lambda done, _, shape: (
            shape.exponential_factor ** jnp.floor(done / shape.exponential_steps * WHOLE)
        ),
        to_zero=False,
        reads=("exponential_factor", "exponential_epochs"),
        from_start=True,
    ),
}


# The fraction of the peak in a warmup: (step, its length, steps of an epoch) -> [].
WARMUPS: dict[str, Callable[[jax.Array, int, float], jax.Array]] = {
    "linear": lambda step, steps, _: step / steps,
    # As the code of arXiv 2104.05704: 1/5, 1/4, 1/3, 1/2, 1 in five epochs.
    "reciprocal": lambda step, steps, epoch: 1.0 / jnp.maximum(1.0, (steps - step) / epoch),
}


def schedule(
    kind: str,
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
    rsqrt_timescale_steps: int,
    exponential_factor: float,
    exponential_steps: float,
) -> Schedule:
    """Returns `lr(step)`: the learning rate of the update applied after `step` others.

    `step` counts from 0 and may be traced; the result is a float32 scalar. As in the released
    recipes, lr(0) is `warmup_lr`, usually 0, wherever there is a linear warmup (that first update
    only fills the optimizer's moments), lr(warmup_steps) is the peak, and lr(total_steps), which no
    update uses, is where a decay or cooldown reaches its end.

    Args:
      kind: a key of DECAYS. `linear` and `cosine` end at `lr_min`. `rsqrt` halves the rate every
        time 1 + (step - warmup_steps) / rsqrt_timescale_steps quadruples. `exponential` multiplies
        the peak by exponential_factor after every exponential_steps, those of the warmup included:
        where this is longer, lr(warmup_steps) is below the peak.
      warmup_lr: the rate of the first update, of a linear warmup.
      cooldown_steps: multiplies the last rates by a line from 1 to 0; `linear` and `cosine` stay
        at lr_min for so long.
      steps_per_epoch: need not be whole.
      by_epoch: whether the rate of an epoch's first update is that of all of them.
      decay_from_start: whether the decay counts from the first update, as timm's, not from the end
        of the warmup.
      cycles: repeats the decay so often, in equal parts of the training (arXiv 1608.03983).
      cycle_decay: the factor from one cycle's peak to the next one's.
      rsqrt_timescale_steps, exponential_factor, exponential_steps: see `kind`.
    """
    decay = DECAYS[kind]
    _check_fit(kind, warmup_steps, cooldown_steps, total_steps, ends_at_0=not lr_min)
    first = 0 if decay.from_start or decay_from_start else warmup_steps
    held = cooldown_steps if decay.to_zero else 0
    cycle_steps = max(1.0, (total_steps - first - held) / cycles)
    shape = Shape(rsqrt_timescale_steps, exponential_factor, exponential_steps)

    def decayed(step: jax.Array) -> jax.Array:
        done = jnp.clip(step - first, 0.0, cycle_steps * cycles)
        highest: jax.Array | float = peak
        if cycles > 1:
            cycle = jnp.minimum(jnp.floor(done / cycle_steps * WHOLE), cycles - 1)
            done -= cycle * cycle_steps
            highest = peak * cycle_decay**cycle
        return lr_min + (highest - lr_min) * decay.remains(done, cycle_steps, shape)

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
    kind: str, warmup_steps: int, cooldown_steps: int, total_steps: int, *, ends_at_0: bool
) -> None:
    if warmup_steps > total_steps:
        raise UserError(
            f"optim.warmup_* means {warmup_steps} steps, more than total.*, {total_steps}."
        )
    if cooldown_steps and DECAYS[kind].to_zero and ends_at_0:
        open_ended = [name for name, decay in DECAYS.items() if not decay.to_zero]
        raise UserError(
            f"optim.cooldown_*: optim.schedule={kind!r} arrives at 0 by itself; "
            f"{', '.join(open_ended)} do not."
        )
    room = total_steps - warmup_steps
    if cooldown_steps > room:
        raise UserError(f"optim.cooldown_* means {cooldown_steps} steps, of which {room} fit.")
