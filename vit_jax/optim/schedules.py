"""Learning rate by step: linear warmup from zero, one of four decays, linear cooldown to zero."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from vit_jax.core.errors import UserError, nearest

Schedule = Callable[[jax.Array | int], jax.Array]


class Decay(NamedTuple):
    """The fraction of the peak left after `done` of the `whole` steps that follow the warmup."""

    remains: Callable[..., jax.Array]  # (done, whole, rsqrt_timescale_steps) -> [], 1 at the start
    to_zero: bool  # whether it reaches zero by itself, without a cooldown


DECAYS = {
    "linear": Decay(lambda done, whole, _: 1.0 - done / whole, to_zero=True),
    "cosine": Decay(
        lambda done, whole, _: 0.5 * (1.0 + jnp.cos(jnp.pi * done / whole)), to_zero=True
    ),
    "constant": Decay(lambda done, *_: jnp.ones_like(done), to_zero=False),
    # arXiv 2106.04560, section 3.5: not tied to the training's length.
    "rsqrt": Decay(
        lambda done, _, timescale: 1.0 / jnp.sqrt(1.0 + done / timescale), to_zero=False
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
) -> Schedule:
    """Returns `lr(step)`: the learning rate of the update applied after `step` others.

    `step` counts from 0 and may be traced; the result is a float32 scalar. As in the released
    recipes, lr(0) is 0 wherever there is a warmup (that first update only fills the optimizer's
    moments), lr(warmup_steps) is the peak, and lr(total_steps), which no update uses, is where a
    decay or cooldown reaches 0. A cooldown multiplies the last `cooldown_steps` rates by a line
    from 1 to 0. `rsqrt` halves the rate every time 1 + (step - warmup_steps) /
    rsqrt_timescale_steps quadruples.

    Raises:
      UserError: for an unknown kind, a warmup or cooldown that does not fit into training, or a
        cooldown of a decay that reaches 0 by itself.
    """
    if kind not in DECAYS:
        raise UserError(f"optim.schedule={kind!r} is not a schedule. {nearest(kind, DECAYS)}")
    _check_fit(kind, warmup_steps, cooldown_steps, total_steps)
    decay_steps = max(1, total_steps - warmup_steps)

    def lr(step: jax.Array | int) -> jax.Array:
        step = jnp.asarray(step, jnp.float32)
        warmup = jnp.minimum(1.0, step / warmup_steps) if warmup_steps else 1.0
        left = jnp.maximum(0.0, total_steps - step)
        cooldown = jnp.minimum(1.0, left / cooldown_steps) if cooldown_steps else 1.0
        done = jnp.clip(step - warmup_steps, 0.0, decay_steps)
        remains = DECAYS[kind].remains(done, decay_steps, rsqrt_timescale_steps)
        return peak * warmup * remains * cooldown

    return lr


def _check_fit(kind: str, warmup_steps: int, cooldown_steps: int, total_steps: int) -> None:
    if not 0 <= warmup_steps <= total_steps:
        raise UserError(
            f"The warmup has to fit into the training, but optim.warmup_* amounts to "
            f"{warmup_steps} steps and total.* to {total_steps}; nearest: "
            f"{max(0, min(warmup_steps, total_steps))} steps of warmup."
        )
    if cooldown_steps and DECAYS[kind].to_zero:
        open_ended = [name for name, decay in DECAYS.items() if not decay.to_zero]
        raise UserError(
            f"optim.cooldown_* amounts to {cooldown_steps} steps, but optim.schedule={kind!r} "
            "arrives at 0 by itself: take the cooldown back with none, or set optim.schedule to "
            f"{' or '.join(open_ended)}."
        )
    room = total_steps - warmup_steps
    if not 0 <= cooldown_steps <= room:
        raise UserError(
            f"The cooldown has to fit behind the warmup: total.* amounts to {total_steps} steps, "
            f"optim.warmup_* to {warmup_steps} and optim.cooldown_* to {cooldown_steps}; nearest: "
            f"{max(0, min(cooldown_steps, room))} steps of cooldown."
        )
