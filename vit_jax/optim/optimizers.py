"""From gradients to updates: clip, direction, weight decay, learning rate; in this order."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import optax

from vit_jax.core.errors import UserError, nearest
from vit_jax.optim import decay
from vit_jax.optim.schedules import Schedule


class Moments(NamedTuple):
    """How an optimizer averages gradients over steps; each reads the fields it is named for."""

    b1: float  # Adam: memory of the first moment
    b2: float  # Adam: memory of the second moment
    eps: float  # Adam: added to the root of the second moment
    momentum: float  # SGD: memory of the velocity; 0 keeps none
    nesterov: bool  # SGD
    mu_dtype: str | None  # both: how the first moment is stored; None as the parameters are


def _adam(m: Moments) -> optax.GradientTransformation:
    """Kingma and Ba, arXiv 1412.6980, algorithm 1, without the learning rate."""
    return optax.scale_by_adam(m.b1, m.b2, m.eps, mu_dtype=m.mu_dtype)


def _sgd(m: Moments) -> optax.GradientTransformation:
    """Velocity v = momentum * v + g, as torch writes it: the learning rate comes afterwards."""
    if not m.momentum:
        return optax.identity()
    return optax.trace(m.momentum, m.nesterov, accumulator_dtype=m.mu_dtype)


# The direction in which each optimizer moves; `create` puts the rest around it.
OPTIMIZERS: dict[str, Callable[[Moments], optax.GradientTransformation]] = {
    "adam": _adam,
    "sgd": _sgd,
}

MU_DTYPES = ("float32", "bfloat16")


def create(
    name: str,
    *,
    schedule: Schedule,
    peak_lr: float,
    weight_decay: float,
    weight_decay_meaning: str,
    grad_clip_norm: float | None,
    b1: float,
    b2: float,
    eps: float,
    momentum: float,
    nesterov: bool,
    mu_dtype: str | None,
) -> optax.GradientTransformation:
    """The optimizer of that name; its updates are to be added to the parameters.

    Everything but the clipping is elementwise, so blocks that are stacked on a layer axis are
    updated as if each were alone. `update` needs the parameters where there is weight decay.

    Args:
      name: a key of OPTIMIZERS.
      schedule: learning rate by number of updates done.
      peak_lr: the schedule's peak, which one meaning of weight decay divides by.
      weight_decay: its number; 0 for none. Kernels only.
      weight_decay_meaning: a key of decay.WEIGHT_DECAY_MEANINGS.
      grad_clip_norm: largest L2 norm over all gradients together; None never clips.
      b1: see Moments, also for the rest.

    Raises:
      UserError: for an unknown name, meaning or dtype, or a clipping norm that is not positive.
    """
    if name not in OPTIMIZERS:
        raise UserError(f"optim.name={name!r} is not an optimizer. {nearest(name, OPTIMIZERS)}")
    if mu_dtype is not None and mu_dtype not in MU_DTYPES:
        raise UserError(f"optim.mu_dtype={mu_dtype!r}. {nearest(mu_dtype, MU_DTYPES)} Or None.")
    if grad_clip_norm is not None and grad_clip_norm <= 0:
        raise UserError(
            f"optim.grad_clip_norm={grad_clip_norm} would stop or reverse training; "
            "it has to be above 0, or None for no clipping."
        )
    direction = OPTIMIZERS[name](Moments(b1, b2, eps, momentum, nesterov, mu_dtype))
    return optax.chain(
        optax.identity() if grad_clip_norm is None else optax.clip_by_global_norm(grad_clip_norm),
        decay.add_decay(
            direction, weight_decay=weight_decay, meaning=weight_decay_meaning, peak_lr=peak_lr
        ),
        optax.scale_by_learning_rate(schedule),
    )
