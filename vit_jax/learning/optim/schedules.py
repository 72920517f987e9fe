"""Learning rate by step: linear warmup from zero, one of five decays, linear cooldown to zero."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from vit_jax.core.errors import UserError

Schedule = Callable[[jax.Array | int], jax.Array]

# XLA divides by a constant by its rounded reciprocal: a whole quotient may come out below itself.
WHOLE = 1 + 2.0**-21


class Shape(NamedTuple):
    """What single decays are shaped by."""

    rsqrt_timescale_steps: int
    exponential_factor: float
    exponential_steps: float


class Decay(NamedTuple):
    """The fraction of the peak left after `done` of the `whole` steps that follow the warmup."""

    remains: Callable[..., jax.Array]  # (done, whole, Shape) -> [], 1 at the start
    to_zero: bool  # whether it reaches zero by itself, without a cooldown
    reads: tuple[str, ...] = ()  # fields of the section `optim`
    from_start: bool = False  # whether `done` and `whole` include the warmup


DECAYS = {
    "linear": Decay(lambda done, whole, _: 1.0 - done / whole, to_zero=True),
    "cosine": Decay(
        lambda done, whole, _: 0.5 * (1.0 + jnp.cos(jnp.pi * done / whole)), to_zero=True
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


def schedule(
    kind: str,
    *,
    peak: float,
    warmup_steps: int,
    cooldown_steps: int,
    total_steps: int,
    rsqrt_timescale_steps: int,
    exponential_factor: float,
    exponential_steps: float,
) -> Schedule:
    """Returns `lr(step)`: the learning rate of the update applied after `step` others.

    `step` counts from 0 and may be traced; the result is a float32 scalar. As in the released
    recipes, lr(0) is 0 wherever there is a warmup (that first update only fills the optimizer's
    moments), lr(warmup_steps) is the peak, and lr(total_steps), which no update uses, is where a
    decay or cooldown reaches 0. A cooldown multiplies the last `cooldown_steps` rates by a line
    from 1 to 0. `rsqrt` halves the rate every time 1 + (step - warmup_steps) /
    rsqrt_timescale_steps quadruples. `exponential` multiplies the peak by exponential_factor after
    every exponential_steps, those of the warmup included: where this is longer, lr(warmup_steps)
    is below the peak.

    Raises:
      UserError: for a warmup or cooldown that does not fit into training, or a cooldown of a decay
        that reaches 0 by itself.
    """
    _check_fit(kind, warmup_steps, cooldown_steps, total_steps)
    decay = DECAYS[kind]
    first = 0 if decay.from_start else warmup_steps
    decay_steps = max(1, total_steps - first)
    shape = Shape(rsqrt_timescale_steps, exponential_factor, exponential_steps)

    def lr(step: jax.Array | int) -> jax.Array:
        step = jnp.asarray(step, jnp.float32)
        left = jnp.maximum(0.0, total_steps - step)
        cooldown = jnp.minimum(1.0, left / cooldown_steps) if cooldown_steps else 1.0
        remains = decay.remains(jnp.clip(step - first, 0.0, decay_steps), decay_steps, shape)
        if warmup_steps:
            remains = jnp.where(step < warmup_steps, step / warmup_steps, remains)
        return peak * remains * cooldown

    return lr


def _check_fit(kind: str, warmup_steps: int, cooldown_steps: int, total_steps: int) -> None:
    if warmup_steps > total_steps:
        raise UserError(
            f"The warmup has to fit into the training, but optim.warmup_* amounts to "
            f"{warmup_steps} steps and total.* to {total_steps}: give, for example, a tenth "
            f"of the training, optim.warmup_steps={total_steps // 10}."
        )
    if cooldown_steps and DECAYS[kind].to_zero:
        open_ended = [name for name, decay in DECAYS.items() if not decay.to_zero]
        raise UserError(
            f"optim.cooldown_* amounts to {cooldown_steps} steps, but optim.schedule={kind!r} "
            "arrives at 0 by itself: take the cooldown back with none, or set optim.schedule to "
            f"{', '.join(open_ended[:-1])} or {open_ended[-1]}."
        )
    room = total_steps - warmup_steps
    if cooldown_steps > room:
        raise UserError(
            f"The cooldown has to fit behind the warmup: total.* amounts to {total_steps} steps, "
            f"optim.warmup_* to {warmup_steps} and optim.cooldown_* to {cooldown_steps}; nearest: "
            f"{room} steps of cooldown."
        )
