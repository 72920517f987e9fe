"""The parts of a training step: durations, model, optimizer, layout of the state, objective."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import optax
from flax import nnx
from jax.sharding import Mesh

from vit_jax.config import (
    InputConfig,
    LoraConfig,
    ModelConfig,
    OptimConfig,
    RunConfig,
    check_constraints,
)
from vit_jax.core import errors, pytrees
from vit_jax.core.arrays import Pixels
from vit_jax.core.axes import Target
from vit_jax.data.source import Source
from vit_jax.learning.losses import SOFTMAX, LossConfig, Objective
from vit_jax.learning.method import Method, Sizes
from vit_jax.learning.methods import SUPERVISED
from vit_jax.learning.optim import optimizers, schedules
from vit_jax.learning.state import StateLayout, state_layout
from vit_jax.learning.step import make_update
from vit_jax.models.layers.kernels.choice import AUTO, check_devices
from vit_jax.models.layers.stack import OFFLOAD_MEMORY
from vit_jax.parallel.products import Products
from vit_jax.run.parts.durations import Durations, make_durations
from vit_jax.run.parts.examples import class_frequencies
from vit_jax.run.parts.networks import Model, adapters, model
from vit_jax.run.parts.preprocessing import view_sizes

if TYPE_CHECKING:
    from vit_jax.learning.optim.patterns import Frozen
    from vit_jax.learning.teacher import Teacher

BALANCED = "balanced"  # of loss.class_weights


def schedule(c: OptimConfig, durations: Durations) -> schedules.Schedule:
    """Learning rate by number of updates done."""
    return schedules.schedule(
        c,
        peak=c.lr,
        lr_min=c.lr_min,
        warmup=c.warmup,
        warmup_lr=c.warmup_lr,
        warmup_steps=durations.warmup_steps,
        cooldown_steps=durations.cooldown_steps,
        total_steps=durations.total_steps,
        steps_per_epoch=durations.steps_per_epoch,
        by_epoch=c.lr_by_epoch,
        decay_from_start=c.decay_from_start,
        cycles=c.cycles,
        cycle_decay=c.cycle_decay,
    )


def rates(
    c: OptimConfig, schedule: schedules.Schedule, is_frozen: Any = None
) -> Callable[[Any, Any], dict[str, Any]]:
    """The logged rates of an update: learning rate, and the share that kernels shrink by.

    is_frozen: masks as `Frozen.masks` gives; None: all parameters are trained.

    A function of (number of updates before it, the optimizer's state after it).
    """

    def at(step: Any, opt_state: Any) -> dict[str, Any]:
        lr = schedule(step)
        if c.decays:  # as its rule does
            return {"train/learning_rate": lr}
        shrinkage = optimizers.effective_weight_decay(
            c.name,
            opt_state,
            lr,
            weight_decay=c.weight_decay,
            weight_decay_meaning=c.weight_decay_meaning,
            peak_lr=c.lr,
            momentum=c.momentum,
            is_frozen=is_frozen,
        )
        known = {} if shrinkage is None else {"train/effective_weight_decay": shrinkage}
        return {"train/learning_rate": lr, **known}

    return at


def frozen(c: OptimConfig, lora: LoraConfig) -> Frozen | None:
    """The parameters that are not trained; None: all are."""
    if not (c.freeze or lora.kernels):
        return None
    from vit_jax.learning.optim.patterns import Frozen

    return Frozen(c.freeze, adapters(lora))


def optimizer(
    c: OptimConfig, schedule: schedules.Schedule, frozen: Frozen | None = None
) -> optax.GradientTransformation:
    """The gradient transformation of the run."""
    trained = _whole_optimizer(c, schedule)
    if frozen is not None:
        trained = frozen.without_frozen(trained)
    if c.layer_decay is None and not c.lr_multipliers:
        # A chain as with them, so that the optimizer's arrays have the same names.
        return optax.chain(trained, optax.identity())
    from vit_jax.learning.optim.patterns import with_lr_multipliers

    return with_lr_multipliers(trained, layer_decay=c.layer_decay, lr_multipliers=c.lr_multipliers)


def _whole_optimizer(c: OptimConfig, schedule: schedules.Schedule) -> optax.GradientTransformation:
    if c.name not in optimizers.OPTIMIZERS:
        return _others_optimizer(c, schedule)
    return optimizers.create(
        c.name,
        schedule=schedule,
        peak_lr=c.lr,
        weight_decay=c.weight_decay,
        weight_decay_meaning=c.weight_decay_meaning,
        weight_decay_on=c.weight_decay_on,
        grad_clip_norm=c.grad_clip_norm,
        b1=c.b1,
        b2=c.b2,
        eps=c.eps,
        momentum=c.momentum,
        nesterov=c.nesterov,
        joint_qkv=c.joint_qkv,
        mu_dtype=c.mu_dtype,
    )


def _others_optimizer(c: OptimConfig, schedule: schedules.Schedule) -> optax.GradientTransformation:
    """That of a rule from optax or a plug-in."""
    from vit_jax.learning.optim.matrices import by_layer

    with errors.naming("optim.name", c.name):
        rule = by_layer(c.rule(schedule))
    if not c.decays:
        rule = optimizers.add_decay(
            rule,
            weight_decay=c.weight_decay,
            meaning=c.weight_decay_meaning,
            peak_lr=c.lr,
            schedule=schedule,
            on=c.weight_decay_on,
        )
    return optax.chain(optimizers.clipping(c.grad_clip_norm), rule)


def layout(
    config: RunConfig,
    make_model: Callable[[nnx.Rngs], nnx.Module],
    schedule: schedules.Schedule,
    mesh: Mesh,
    teacher: Teacher | None = None,
) -> StateLayout:
    """Shapes and shardings of the run's state; nothing is allocated."""
    _check_offload(config.model, mesh)
    _check_attention(config.model, mesh)
    not_trained = frozen(config.optim, config.lora)
    done = state_layout(
        make_model,
        optimizer(config.optim, schedule, not_trained),
        mesh,
        ema_decay=ema_decay(config.optim, config.method),
        average=config.optim.average,
        shard_optimizer=config.mesh.shard_optimizer,
        unstacked_steps=_unstacked_steps(config.model, config.optim, config.lora, mesh),
        teacher=teacher,
        method=config.method,
    )
    if not getattr(config.model, "frozen_statistics", False):
        _check_accumulation(config.optim.grad_accum_steps, done)
        _check_frozen_statistics(not_trained, done)
    return done


def ema_decay(c: OptimConfig, method: Method) -> float | None:
    """The decay of the weights' EMA, at first if the run's method changes it; None: no EMA.

    0 for weights that the optimizer has.
    """
    if c.average is not None:
        return 0.0
    by_method = method.averaging(0.0)
    return c.ema_decay if by_method is None else float(by_method)


def _check_accumulation(parts: int, layout: StateLayout) -> None:
    """UserError for microbatches where norms take their moments from the whole batch."""
    params = layout.state.params
    moving = pytrees.without_statistics(params) is not params
    if parts > 1 and moving:
        raise errors.UserError(
            f"optim.grad_accum_steps={parts}: batch norms need the whole batch; set 1, or "
            "model.frozen_statistics=true."
        )


def _check_frozen_statistics(frozen: Frozen | None, layout: StateLayout) -> None:
    """UserError where batch norms train by the batch's moments and would keep the running ones.

    Evaluations would then be of another function than the one that was trained.
    """
    if frozen is None:
        return
    masks = pytrees.flatten(frozen.masks(layout.state.params))
    kept = [n for n, mask in masks.items() if pytrees.is_statistic(n) and mask.any()]
    if kept:
        field = "optim.freeze" if frozen.freeze else "lora.kernels"
        raise errors.UserError(
            f"{field} keeps {kept[0]}, while training would take moments of each batch. Set "
            "model.frozen_statistics=true."
        )


def _unstacked_steps(model: ModelConfig, c: OptimConfig, lora: LoraConfig, mesh: Mesh) -> bool:
    """Returns whether a step updates each layer's kernels on their own.

    Where blocks are unrolled on TPUs or GPUs that have copies of all parameters, stacking their
    gradients would cost a twentieth of the step (docs/benchmarks.md). Names of layers in patterns,
    and rules that look at whole matrices, take the stacked form.
    """
    unrolled = not model.scan and mesh.devices.flat[0].platform != "cpu"
    plain = not (c.freeze or c.lr_multipliers or c.layer_decay is not None or lora.kernels)
    copied = mesh.shape["fsdp"] == mesh.shape["tensor"] == 1
    ours = optimizers.OPTIMIZERS.get(c.name)
    return unrolled and copied and plain and ours is not None and ours.elementwise


def _check_offload(c: ModelConfig, mesh: Mesh) -> None:
    if c.remat != "offload":
        return
    device = mesh.devices.flat[0]
    kinds = [memory.kind for memory in device.addressable_memories()]
    if OFFLOAD_MEMORY not in kinds:
        raise errors.UserError(
            f"model.remat=offload takes {OFFLOAD_MEMORY} memory, which {device.device_kind} lacks: "
            "set model.remat=full."
        )


def _check_attention(c: ModelConfig, mesh: Mesh) -> None:
    device = mesh.devices.flat[0]
    check_devices(
        getattr(c, "attention", None) or AUTO, Target(device.platform, device.device_kind)
    )


def objective(config: RunConfig, *, num_classes: int, total_steps: int = 1) -> Objective:
    """The objective of a step, from uint8 images on."""
    if config.method.kind != SUPERVISED:
        _check_method_reads(config.loss, config.method)
    return Objective(
        loss=config.loss,
        num_classes=num_classes,
        grad_accum_steps=config.optim.grad_accum_steps,
        frozen=frozen(config.optim, config.lora),
        mean=config.input.mean,
        std=config.input.std,
        method=config.method,
        total_steps=total_steps,
    )


def _loss(
    config: RunConfig, source: Source | None, *, num_classes: int, total_steps: int
) -> Objective:
    """The objective with the class weights of `source`; None: not known, all alike."""
    unweighted = objective(config, num_classes=num_classes, total_steps=total_steps)
    weights = class_weights(
        config.loss.class_weights, config.input, source, num_classes=num_classes
    )
    return dataclasses.replace(unweighted, class_weights=weights)


def class_weights(
    weights: tuple[float, ...] | str | None,
    images: InputConfig,
    source: Source | None,
    *,
    num_classes: int,
) -> tuple[float, ...] | None:
    """A weight for each class of the run's data, or None where loss.class_weights are None.

    "balanced" is 1 / (C * share of the class in all labels), with C the number of classes that
    occur: n / (C * count). A class without a label weighs 1. All are 1 if `source` is None.

    UserError for numbers that do not fit, and where there is nothing to balance.
    """
    if weights is None:
        return None
    if weights != BALANCED:
        return _checked(weights, num_classes)
    if source is None:
        return (1.0,) * num_classes
    shares = class_frequencies(images, source)
    occurring = int((shares > 0).sum())
    if not occurring:
        raise errors.UserError("loss.class_weights=balanced: no example has a label.")
    return tuple(float(1 / (occurring * share)) if share else 1.0 for share in shares)


def _checked(weights: tuple[float, ...] | str, num_classes: int) -> tuple[float, ...]:
    assert not isinstance(weights, str)
    if len(weights) != num_classes:
        raise errors.UserError(
            f"loss.class_weights has {len(weights):,} numbers, the data {num_classes:,} classes."
        )
    return weights


def _check_method_reads(c: LossConfig, method: Method) -> None:
    """UserError for a field of the section `loss` that the method leaves unread."""
    read = method.reads_of_loss
    defaults = {f.name: f.default for f in dataclasses.fields(c)} | {"kind": SOFTMAX}
    changed = [name for name, default in defaults.items() if getattr(c, name) != default]
    unread = [name for name in changed if name not in read]
    if not unread:
        return
    name = f"loss.{unread[0]}"
    assignment = f"{name}={getattr(c, unread[0])}"
    assignment = assignment if len(assignment) < 100 else name
    cure = " ".join(f"--config.loss.{name}={str(defaults[name]).lower()}" for name in unread)
    labels = "" if method.uses_labels else ", which does not learn from labels"
    raise errors.UserError(
        f"{assignment} is not read by method.kind={method.kind}{labels}: set {cure}."
    )


def products(config: RunConfig, model: Model, teacher: Teacher | None) -> Products:
    """FLOPs of the products that the run computes for one example."""
    if config.method.kind == SUPERVISED:
        return Products(model.info.forward_flops)
    from vit_jax.learning.method_products import count_products

    return count_products(
        config.method,
        model.make_counted,
        Sizes(model.preprocess.image_size, view_sizes(config.input), model.preprocess.channels),
        batch_size=config.input.batch_size,
        num_classes=model.num_classes,
        has_average=ema_decay(config.optim, config.method) is not None,
        teacher=teacher,
    )


def teacher(
    method: Method,
    model: ModelConfig,
    images: InputConfig,
    mesh: Mesh,
    num_classes: int,
    class_names: Sequence[str] | None,
    channels: int = 3,
) -> Teacher | None:
    """The teacher of a method, if it has one."""
    if not method.teacher:
        return None
    from vit_jax.run.parts import teachers

    return teachers.teacher(method, model, images, mesh, num_classes, class_names, channels)


class StepParts(NamedTuple):
    """The parts of a step; shapes and shardings only."""

    durations: Durations
    model: Model
    schedule: schedules.Schedule
    layout: StateLayout
    objective: Objective
    products: Products


def step_parts(
    config: RunConfig,
    mesh: Mesh,
    *,
    num_examples: int,
    num_classes: int,
    class_names: Sequence[str] | None = (),
    source: Source | None = None,
    rising: schedules.Schedule | None = None,
    attempt: errors.Attempt = errors.make_or_raise,
) -> StepParts:
    """The parts of a step on `mesh`; nothing is allocated.

    class_names: of the data; None: they have none; (): not known, since no data were read.
    source: the data, if there are; for what the loss and the head take from their labels.
    rising: a learning rate to be tried, instead of the config's schedule.
    attempt: makes each part; default: the first error is raised.
    """
    check_constraints(config, attempt)
    durations = attempt("plan", make_durations, config, num_examples=num_examples)
    several_labels = source is not None and source.max_labels > 1
    declared = Pixels(getattr(config.model, "channels", None) or 3)
    pixels = declared if source is None else source.pixels
    network = attempt(
        "model",
        model,
        config,
        num_classes=num_classes,
        several_labels=several_labels,
        pixels=pixels,
    )
    learning_rate = rising or attempt("optim", schedule, config.optim, durations)
    read = config.method, config.model, config.input, mesh, num_classes, class_names
    teacher_model = attempt("method", teacher, *read, pixels.channels)
    abstract_state = attempt(
        "optim",
        lambda network, *others: layout(config, network.make, *others),
        *(network, learning_rate, mesh, teacher_model),
    )
    total_steps = 1 if durations is errors.NOT_MADE else durations.total_steps
    learnt = attempt(
        "loss", _loss, config, source, num_classes=num_classes, total_steps=total_steps
    )
    return StepParts(
        durations=durations,
        model=network,
        schedule=learning_rate,
        layout=abstract_state,
        objective=learnt,
        products=attempt("method", products, config, network, teacher_model),
    )


def update(config: RunConfig, parts: StepParts) -> Callable[..., Any]:
    """The function that a run compiles; its arguments are those of `layout.in_steps`."""
    frozen = parts.objective.frozen
    is_frozen = None if frozen is None else frozen.masks(parts.layout.state.params)
    logged = rates(config.optim, parts.schedule, is_frozen)
    return make_update(parts.layout.in_steps, parts.objective, logged, config.seed)
