"""Optimizers by name: clipping, update rule, weight decay and learning rate, in this order."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from vit_jax.core.errors import UserError, nearest
from vit_jax.optim import decay, update_rules
from vit_jax.optim.schedules import Schedule
from vit_jax.optim.update_rules import Moments


class Optimizer(NamedTuple):
    """The parts of an optimizer that differ from the others; `create` adds the rest."""

    update_rule: Callable[[Moments], optax.GradientTransformation]
    reads: tuple[str, ...]  # fields of Moments
    after_decay: Callable[[Moments, float], optax.GradientTransformation] | None = None  # and decay
    elementwise: bool = False  # whether an update depends on its own gradient and moments alone
    # Of updates that are multiplied by their learning rates already.
    velocity: Callable[[Moments], optax.GradientTransformation] | None = None


OPTIMIZERS = {
    "adam": Optimizer(update_rules.adam, ("b1", "b2", "eps", "mu_dtype"), elementwise=True),
    "sgd": Optimizer(update_rules.sgd, ("momentum", "nesterov", "mu_dtype"), elementwise=True),
    "rmsprop": Optimizer(
        update_rules.rms,
        ("b2", "eps", "momentum", "mu_dtype"),
        elementwise=True,
        velocity=update_rules.velocity,
    ),
    "adafactor": Optimizer(update_rules.adafactor, ("b1", "b2", "mu_dtype")),
    "lion": Optimizer(update_rules.lion, ("b1", "b2", "mu_dtype"), elementwise=True),
    "muon": Optimizer(update_rules.muon, ("b1", "b2", "eps", "momentum", "nesterov", "mu_dtype")),
    "lamb": Optimizer(
        update_rules.adam, ("b1", "b2", "eps", "joint_qkv", "mu_dtype"), update_rules.trust_ratio
    ),
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
    mu_dtype: str | None,
    **moments: Any,
) -> optax.GradientTransformation:
    """Creates the optimizer of this name; its updates are to be added to the parameters.

    Blocks stacked on a layer axis are updated independently, except that gradients are clipped by
    their global norm. `update` needs the parameters; it takes the norm of the gradients as
    `norm` from who has it already.

    Args:
      name: a key of OPTIMIZERS.
      schedule: learning rate by number of updates done.
      peak_lr: the schedule's peak, which one meaning of weight decay divides by.
      weight_decay: its coefficient; 0 for none. Kernels only.
      weight_decay_meaning: a key of decay.WEIGHT_DECAY_MEANINGS.
      grad_clip_norm: largest global L2 norm of the gradients; None never clips.
      mu_dtype, moments: the fields of Moments; OPTIMIZERS lists those that each optimizer reads.

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
    optimizer = OPTIMIZERS[name]
    averages = Moments(mu_dtype=mu_dtype, **moments)
    rule, rate = optimizer.update_rule(averages), optax.scale_by_learning_rate(schedule)
    after_decay = (
        [] if optimizer.after_decay is None else [optimizer.after_decay(averages, weight_decay)]
    )
    is_scaled = optimizer.velocity is not None
    if optimizer.velocity is not None:
        rule = optax.chain(rule, rate, optimizer.velocity(averages))
    return optax.chain(
        optax.identity() if grad_clip_norm is None else clip(grad_clip_norm),
        decay.add_decay(
            rule,
            weight_decay=weight_decay,
            meaning=weight_decay_meaning,
            peak_lr=peak_lr,
            schedule=schedule if is_scaled else None,
        ),
        *after_decay,
        *([] if is_scaled else [rate]),
    )


def clip(max_norm: float) -> optax.GradientTransformationExtraArgs:
    """Scales gradients down to a global L2 norm of `max_norm`, as optax.clip_by_global_norm.

    `update` takes their norm as `norm`, or else computes it.
    """

    def update(
        updates: Any, state: Any, params: Any = None, *, norm: Any = None, **_: Any
    ) -> tuple[Any, Any]:
        del params
        norm = optax.tree.norm(updates) if norm is None else norm
        one = lambda g: jnp.where(norm < max_norm, g, g / norm.astype(g.dtype) * max_norm)
        return jax.tree.map(one, updates), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)


def effective_weight_decay(
    name: str,
    opt_state: Any,
    lr: jax.Array | float,
    *,
    weight_decay: float,
    weight_decay_meaning: str,
    peak_lr: float,
    momentum: float,
) -> jax.Array | float | None:
    """The fraction of itself that a kernel lost to decay in the last update, at rate `lr`.

    Exact for the decoupled meanings; for LAMB it is the mean over its kernels, since each is scaled
    by its trust ratio. With `coupled`, SGD's value holds once the velocity has built up; for other
    optimizers it is None: their update rules mix decay and gradient.

    opt_state: the whole optimizer's state after that update, however it is wrapped.
    """
    if not weight_decay:
        return 0.0
    share = lr * decay.decay_per_lr(weight_decay, weight_decay_meaning, peak_lr)
    if decay.WEIGHT_DECAY_MEANINGS[weight_decay_meaning].decoupled:
        return share * update_rules.mean_trust_ratio(opt_state) if name == "lamb" else share
    return share / (1 - momentum) if name == "sgd" else None
