"""Config sections become objects. The only file besides the commands that sees a config.

Every function takes one section, and what other objects it needs. `data/` and with it TensorFlow
are imported where they are first used.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import optax
from etils import epath
from flax import nnx
from jax.sharding import Mesh

from vit_jax import environment, models, step
from vit_jax.clock import Clock
from vit_jax.config import (
    InputConfig,
    LogConfig,
    MeshConfig,
    OptimConfig,
    RunConfig,
)
from vit_jax.core import errors, opstring
from vit_jax.core.cadence import Cadence
from vit_jax.dist import mesh as meshes
from vit_jax.evals import EVALUATORS, Evals, Evaluator
from vit_jax.feed import Feed
from vit_jax.log import RunLog
from vit_jax.objective import Batch, Objective
from vit_jax.optim import decay, optimizers, schedules
from vit_jax.store.checkpoints import Checkpoints
from vit_jax.weights.checkpoint import describe

if TYPE_CHECKING:
    from vit_jax.data.example import Source


class Classes(NamedTuple):
    """What a model tells apart."""

    number: int
    names: tuple[str, ...] | None


@dataclasses.dataclass(frozen=True)
class Plan:
    """How long a run is, in steps, and what is due when."""

    total_steps: int
    warmup_steps: int
    steps_per_epoch: float
    log: Cadence
    save: Cadence

    def check_start(self, step: int, workdir: epath.Path) -> None:
        """UserError if a run that is at `step` is already beyond this plan."""
        if step > self.total_steps:
            raise errors.UserError(
                f"{workdir} is at step {step:,}, but total.* amounts to {self.total_steps:,} "
                "steps: raise it, or give another --workdir."
            )


def mesh(c: MeshConfig) -> Mesh:
    """The devices of the run."""
    return meshes.make_mesh(data=c.data)


def source(c: InputConfig) -> Source:
    """The training data; opened, checked, not yet read."""
    from vit_jax.data import sources

    return sources.create(
        c.source,
        data_dir=c.data_dir,
        split=c.split,
        num_examples=c.num_examples,
        num_classes=c.num_classes,
        image_size=image_size(c.preprocess, "input.preprocess"),
        where="input",
    )


def image_size(preprocess: str, field: str) -> tuple[int, int]:
    """(height, width) that a preprocess string ends with. UserError if it is not fixed."""
    from vit_jax.data import ops

    size = ops.parse(preprocess, field=field).output_size
    if size is None:
        raise errors.UserError(
            f"{field}={preprocess!r} gives images of different sizes: end it with an op that takes "
            "a size, such as resize(224)."
        )
    return size


def plan(config: RunConfig, *, num_examples: int) -> Plan:
    """Durations in steps, rounded to the nearest whole one."""
    batch_size, optim = config.input.batch_size, config.optim

    def steps(where: str, **given: float | None) -> int | None:
        some = {k: v for k, v in given.items() if v is not None}
        if len(some) > 1:
            raise errors.UserError(f"Give one of {where}: {', '.join(some)} are all set.")
        per_step = {"steps": 1.0, "epochs": num_examples / batch_size, "examples": 1 / batch_size}
        for unit, amount in some.items():
            return round(amount * per_step[unit])
        return None

    total_steps = steps("total.*", **dataclasses.asdict(config.total))
    if total_steps is None:
        raise errors.UserError(
            "How long to train is not set: give one of total.steps, total.epochs, total.examples."
        )
    if not 1 <= total_steps < 2**31:
        raise errors.UserError(
            f"total.* amounts to {total_steps} steps of input.batch_size={batch_size} examples "
            f"(an epoch has {num_examples / batch_size:.4g}): give at least 1."
        )
    warmup_steps = steps(
        "optim.warmup_*",
        steps=optim.warmup_steps,
        epochs=optim.warmup_epochs,
        examples=optim.warmup_examples,
    )
    return Plan(
        total_steps=total_steps,
        warmup_steps=warmup_steps or 0,
        steps_per_epoch=num_examples / batch_size,
        log=Cadence(config.log.every_steps, total_steps),
        save=Cadence(config.checkpoint.every_steps, total_steps),
    )


@dataclasses.dataclass(frozen=True)
class Model:
    """A model that is not built yet.

    Attributes:
      make: nnx.Rngs -> module.
      info: its name, parameters, FLOPs and fields.
      preprocess: what prediction makes of an image, and so the size of its images.
    """

    make: Callable[[nnx.Rngs], nnx.Module]
    info: models.ModelInfo
    preprocess: models.Preprocess


def model(config: RunConfig, *, num_classes: int) -> Model:
    """The model of the run; names and sizes are checked now."""
    prepared = preprocess(config)
    fields = {k: v for k, v in dataclasses.asdict(config.model).items() if v is not None}
    arguments: dict[str, Any] = {
        "num_classes": num_classes,
        "image_size": prepared.image_size,
        **fields,
    }
    name = arguments.pop("name")
    return Model(
        make=lambda rngs: models.create(name, rngs=rngs, preprocess=prepared, **arguments),
        info=models.info(name, **arguments),
        preprocess=prepared,
    )


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


def store(config: RunConfig, workdir: epath.Path) -> Checkpoints:
    """The checkpoints of a work directory."""
    c = config.checkpoint
    return Checkpoints(
        workdir / "checkpoints",
        keep_last=c.keep_last,
        keep_every_steps=c.keep_every_steps,
        best_metric=c.best_metric,
        best_mode=c.best_mode,
    )


def batch_layout(c: InputConfig, source: Source, mesh: Mesh) -> Batch:
    """Shapes and shardings of a training batch."""
    meshes.check_batch(mesh, c.batch_size, "input.batch_size")
    return step.batch_layout(
        mesh,
        batch_size=c.batch_size,
        image_size=image_size(c.preprocess, "input.preprocess"),
        max_labels=source.max_labels,
    )


def train_feed(config: RunConfig, source: Source, layout: Batch, *, start_step: int) -> Feed:
    """Batches from step `start_step` on, counted from 0."""
    from vit_jax.data import pipeline

    c = config.input
    batches = pipeline.train_batches(
        source,
        c.preprocess,
        batch_size=c.batch_size,
        seed=config.seed,
        start_step=start_step,
        on_bad_image=c.on_bad_image,
        max_image_pixels=c.max_image_pixels,
        threads=c.threads,
        host=jax.process_index(),
        num_hosts=jax.process_count(),
    )
    return Feed(batches, layout)


def log(c: LogConfig, workdir: epath.Path, *, start_step: int) -> RunLog:
    """Where the numbers of the run go."""
    profile = None if c.profile_at_step is None else (c.profile_at_step, c.profile_steps)
    return RunLog(workdir, tensorboard=c.tensorboard, start_step=start_step, profile=profile)


def clock(
    config: RunConfig,
    info: models.ModelInfo,
    plan: Plan,
    mesh: Mesh,
    feed: Feed,
    *,
    start_step: int,
) -> Clock:
    """Measures the speed of the run."""
    return Clock(
        batch_size=config.input.batch_size,
        step_flops=3 * info.forward_flops * config.input.batch_size,
        peak_flops=environment.total_peak_flops(mesh, config.log.peak_tflops),
        start_step=start_step,
        total_steps=plan.total_steps,
        feed=feed,
    )


def evals(
    config: RunConfig,
    classes: Classes,
    graph: nnx.GraphDef,
    mesh: Mesh,
    objective: Objective,
    *,
    image_size: tuple[int, int],
    total_steps: int,
) -> Evals:
    """The evaluations of the run, for models of `image_size`; their data are checked now."""
    made: dict[str, tuple[Evaluator, Cadence]] = {}
    for name, c in config.evals.items():
        if c.kind not in EVALUATORS:
            raise errors.UserError(
                f"evals.{name}.kind={c.kind!r} is no evaluation. "
                f"{errors.nearest(c.kind, EVALUATORS)}"
            )
        open_feed = _eval_feed(name, config, classes, mesh, image_size)
        evaluator = EVALUATORS[c.kind](
            graph=graph, mesh=mesh, objective=objective, open_feed=open_feed
        )
        made[name] = (evaluator, Cadence(c.every_steps, total_steps))
    _check_best_metric(config)
    return Evals(made)


def _check_best_metric(config: RunConfig) -> None:
    """A metric that never comes would silently keep nothing."""
    best = config.checkpoint.best_metric
    there = [f"{n}/{x}" for n, c in config.evals.items() for x in EVALUATORS[c.kind].numbers]
    if best is not None and best not in there:
        raise errors.UserError(
            f"checkpoint.best_metric={best!r} is given by no evaluation. "
            f"{errors.nearest(best, there)}"
        )


def _eval_feed(
    name: str, config: RunConfig, classes: Classes, mesh: Mesh, wanted: tuple[int, int]
) -> Callable[[], tuple[Feed, int]]:
    """A function that opens the split anew: its feed, and its number of batches."""
    from vit_jax.data import pipeline, sources

    c, input = config.evals[name], config.input
    size = image_size(c.preprocess, f"evals.{name}.preprocess")
    if size != wanted:
        raise errors.UserError(
            f"evals.{name}.preprocess gives images of {size}, the model takes {wanted}."
        )
    batch_size = input.batch_size if c.batch_size is None else c.batch_size
    meshes.check_batch(mesh, batch_size, f"evals.{name}.batch_size")
    kind = c.source or input.source
    source = sources.create(
        kind,
        data_dir=c.data_dir or input.data_dir,
        split=c.split,
        num_examples=batch_size if kind == "synthetic" else None,
        num_classes=classes.number,
        image_size=size,
        where=f"evals.{name}",
    )
    if source.class_names and classes.names and source.class_names != classes.names:
        raise errors.UserError(
            f"evals.{name} has other classes than the training data, or has them in another "
            "order: its accuracy would mean nothing."
        )
    arrays = step.batch_layout(
        mesh, batch_size=batch_size, image_size=size, max_labels=source.max_labels
    )

    def open_feed() -> tuple[Feed, int]:
        batches = pipeline.eval_batches(
            source,
            c.preprocess,
            batch_size=batch_size,
            on_bad_image=input.on_bad_image,
            max_image_pixels=input.max_image_pixels,
            threads=input.threads,
            host=jax.process_index(),
            num_hosts=jax.process_count(),
        )
        return Feed(batches, arrays), math.ceil(source.num_examples / batch_size)

    return open_feed


def preprocess(config: RunConfig) -> models.Preprocess:
    """How images are to be prepared for prediction: as the first evaluation prepares them.

    Without an evaluation, the whole image stands for the random crops of training.
    """
    size = image_size(config.input.preprocess, "input.preprocess")
    resize: tuple[int, int] | int | None = None
    crop = None
    for name, c in list(config.evals.items())[:1]:
        for call in opstring.parse(c.preprocess):
            wanted = call.argument(0, "size")
            if call.name in ("resize", "resize_small") and resize is crop is None:
                resize = wanted if call.name == "resize_small" else _pair(wanted)
            elif call.name == "central_crop" and crop is None:
                crop = _pair(wanted)
            elif call.name != "decode":
                raise errors.UserError(
                    f"evals.{name}.preprocess={c.preprocess!r} is the first evaluation's, which "
                    "prediction repeats; it can: decode, then resize or resize_small or neither, "
                    "then central_crop or not."
                )
    if resize is crop is None:
        resize = size
    return models.Preprocess(size, resize, crop, config.input.mean, config.input.std)


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size


def description(model: Model, source: Source) -> dict[str, Any]:
    """What the run's checkpoints say about themselves."""
    return describe(
        model.info,
        num_classes=source.num_classes,
        class_names=source.class_names,
        preprocess=model.preprocess,
    )
