"""What a step minimises, and how parameters follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import optax

from vit_jax.build.plans import Plan
from vit_jax.config import OptimConfig, RunConfig
from vit_jax.core import errors
from vit_jax.objective import Objective
from vit_jax.optim import decay, optimizers, schedules


def schedule(c: OptimConfig, plan: Plan) -> schedules.Schedule:
    """Learning rate by number of updates done."""
    return schedules.schedule(
        c.schedule, peak=c.lr, warmup_steps=plan.warmup_steps, total_steps=plan.total_steps
    )


def rates(c: OptimConfig, schedule: schedules.Schedule) -> Callable[[Any], dict[str, Any]]:
    """What the log says of an update: learning rate, and the share that kernels shrink by."""

    def at(step: Any) -> dict[str, Any]:
        lr = schedule(step)
        shrinkage = decay.shrinkage(
            lr, weight_decay=c.weight_decay, meaning=c.weight_decay_meaning, peak_lr=c.lr
        )
        return {"train/learning_rate": lr, "train/shrinkage": shrinkage}

    return at


def optimizer(c: OptimConfig, schedule: schedules.Schedule) -> optax.GradientTransformation:
    """What turns gradients into updates."""
    return optimizers.create(
        c.name,
        schedule=schedule,
        peak_lr=c.lr,
        weight_decay=c.weight_decay,
        weight_decay_meaning=c.weight_decay_meaning,
        grad_clip_norm=c.grad_clip_norm,
        b1=c.b1,
        b2=c.b2,
        eps=c.eps,
        momentum=c.momentum,
        nesterov=c.nesterov,
        mu_dtype=c.mu_dtype,
    )


def objective(config: RunConfig, *, num_classes: int) -> Objective:
    """What a step minimises, from uint8 images on."""
    c, parts, batch_size = config.loss, config.optim.accumulate, config.input.batch_size
    if batch_size % parts:
        raise errors.UserError(
            f"input.batch_size={batch_size} does not divide into optim.accumulate={parts} parts."
        )
    return Objective(
        loss=c.kind,
        label_smoothing=c.label_smoothing,
        mixup_alpha=c.mixup,
        num_classes=num_classes,
        accumulate=parts,
        mean=config.input.mean,
        std=config.input.std,
    )
