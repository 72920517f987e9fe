"""Learning rate by step: a linear warmup from zero, then linear, cosine or no decay to zero."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from vit_jax.core.errors import UserError, nearest

Schedule = Callable[[jax.Array | int], jax.Array]


def _linear(progress: jax.Array) -> jax.Array:
    return 1.0 - progress


def _cosine(progress: jax.Array) -> jax.Array:
    return 0.5 * (1.0 + jnp.cos(jnp.pi * progress))


def _constant(progress: jax.Array) -> jax.Array:
    return jnp.ones_like(progress)


# What remains of the peak when this fraction, 0 to 1, of the steps after the warmup is done.
DECAYS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "linear": _linear,
    "cosine": _cosine,
    "constant": _constant,
}


def schedule(kind: str, *, peak: float, warmup_steps: int, total_steps: int) -> Schedule:
    """Returns `lr(step)`: the rate of the update that is applied after `step` others.

    `step` counts from 0 and may be traced; the result is a float32 scalar. As in the released
    recipes, lr(0) is 0 wherever there is a warmup (that first update only fills the optimizer's
    moments), lr(warmup_steps) is the peak, and lr(total_steps), which no update uses, is where a
    decay arrives at 0.

    Raises:
      UserError: for an unknown kind, or a warmup longer than training.
    """
    if kind not in DECAYS:
        raise UserError(f"optim.schedule={kind!r} is not a schedule. {nearest(kind, DECAYS)}")
    if not 0 <= warmup_steps <= total_steps:
        raise UserError(
            f"The warmup has to fit into the training, but optim.warmup_* amounts to "
            f"{warmup_steps} steps and total.* to {total_steps}; nearest: "
            f"{max(0, min(warmup_steps, total_steps))} steps of warmup."
        )
    decay = DECAYS[kind]
    decay_steps = max(1, total_steps - warmup_steps)

    def lr(step: jax.Array | int) -> jax.Array:
        step = jnp.asarray(step, jnp.float32)
        warmup = jnp.minimum(1.0, step / warmup_steps) if warmup_steps else 1.0
        progress = jnp.clip((step - warmup_steps) / decay_steps, 0.0, 1.0)
        return peak * warmup * decay(progress)

    return lr
