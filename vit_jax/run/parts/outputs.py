"""The outputs of a run: its checkpoints and logs, and the clock that measures its speed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import jax
from etils import epath
from jax.sharding import Mesh

from vit_jax import config as configs
from vit_jax.config import CheckpointConfig, InputConfig, LogConfig, RunConfig
from vit_jax.core import class_names
from vit_jax.core.metric_names import best_mode
from vit_jax.core.schema import entry_points
from vit_jax.data.source import Source
from vit_jax.learning.clock import Clock
from vit_jax.learning.feed import Feed, SkippedImages
from vit_jax.learning.loggers import Logger, RunLog
from vit_jax.learning.state import StateLayout, total_bytes
from vit_jax.run import environment
from vit_jax.run.parts.durations import Durations
from vit_jax.run.parts.pins import describe_pins
from vit_jax.run.parts.updates import StepParts
from vit_jax.store import checkpoint_dir
from vit_jax.store import workdir as workdirs
from vit_jax.store.checkpoints import Checkpoints
from vit_jax.store.workdir import (
    MayDiffer,
    WorkdirRecord,
    check_workdir,
    read_document,
    saved_step,
    write_record,
)

if TYPE_CHECKING:
    from vit_jax.learning.teacher import Teacher

LOGGERS = entry_points.Parts[Callable[..., Logger]]("loggers", {})  # of other packages
# Fields of a work directory's config that may differ when a run resumes there.
MAY_DIFFER = MayDiffer(configs.FREE_FIELDS, configs.STEP_FIELDS, configs.with_new_fields)


def workdir_record(
    config: RunConfig,
    workdir: epath.Path,
    source: Source,
    teacher: Teacher | None,
    allow_config_change: bool,
) -> WorkdirRecord:
    """The run's record in the work directory; UserError if it may not start or resume there."""
    teacher_fingerprint = {} if teacher is None else {"teacher": teacher.model.about.fingerprint()}
    found = check_workdir(
        workdir,
        config=configs.to_dict(config),
        fingerprint={"input": source.fingerprint, **teacher_fingerprint},
        may_differ=MAY_DIFFER,
        allow_config_change=allow_config_change,
    )
    if moved := _classes_that_moved(workdir, source):
        found.changes.append(f"classes: {moved}; the head keeps its rows, whatever they meant")
    step = saved_step(workdir)
    if step and any(change.startswith("input.batch_size: ") for change in found.changes):
        before = read_document(workdir)["config"]["input"]["batch_size"]
        found.changes.append(_moved(step, before, config.input.batch_size, source.num_examples))
    return found


def record_start(
    record: WorkdirRecord, requested: RunConfig, config: RunConfig, mesh: Mesh, durations: Durations
) -> str:
    """Records this start in config.json, if this is process 0; returns its id, or ""."""
    if jax.process_index() > 0:
        return ""
    about = environment.describe(mesh) | describe_pins(requested, config)
    return write_record(record, run=about | {"total_steps": durations.total_steps})


def _moved(step: int, before: int, batch_size: int, num_examples: int) -> str:
    """The place in the data that a step stands for with another batch size than before."""
    then, now = step * before, step * batch_size
    what = "skipped" if now > then else "repeated"
    epochs = [f"epoch {examples / num_examples:.2f}" for examples in (then, now)]
    return (
        f"place: step {step:,} was at example {then:,} ({epochs[0]}) and is at {now:,} "
        f"({epochs[1]}) now: the {abs(now - then):,} between are {what}; the learning rate is that "
        "of this step in the new plan"
    )


def _classes_that_moved(workdir: epath.Path, source: Source) -> str:
    """The first class in which the data differ from those of the newest checkpoint, or ""."""
    saved = checkpoint_dir.steps(workdir / "checkpoints")
    if not saved or source.class_names is None:
        return ""
    try:
        about = checkpoint_dir.read_description(workdir / "checkpoints" / str(max(saved)))
        before = about.get("class_names") or ()
        return class_names.difference(source.class_names, before) if before else ""
    except (checkpoint_dir.DamagedError, AttributeError, TypeError):  # restoring tells of it
        return ""


def store(c: CheckpointConfig, workdir: epath.Path) -> Checkpoints:
    """The checkpoints of a work directory."""
    return Checkpoints(
        workdir / "checkpoints",
        keep_last=c.keep_last,
        keep_every_steps=c.keep_every_steps,
        best_metric=c.best_metric,
        best_mode=best_mode(c.best_metric, c.best_mode),
    )


def check_log(c: LogConfig) -> None:
    """Raises UserError if the run cannot be logged as configured."""
    if c.wandb_project is not None:
        from vit_jax.learning.loggers.weights_and_biases import check_project

        check_project(c.wandb_project)
    if c.mlflow_experiment is not None:
        from vit_jax.learning.loggers.mlflow_runs import check_experiment

        check_experiment(c.mlflow_experiment)
    for name in c.loggers:
        LOGGERS.get_named("log.loggers", name)


def log(
    config: RunConfig, workdir: epath.Path, *, start_step: int, more: Sequence[Logger] = ()
) -> RunLog:
    """The log of the run's numbers, which `more` get as well."""
    c = config.log
    profile = None if c.profile_at_step is None else (c.profile_at_step, c.profile_steps)
    writers = more if jax.process_index() == 0 else ()
    log = RunLog(workdir, writers=writers, start_step=start_step, profile=profile)
    if jax.process_index() > 0:
        return log
    fields, program = configs.to_dict(config), f"import vit_jax\n\nconfig = {config!r}"
    with contextlib.ExitStack() as opening:
        opening.push(log)  # where one does not start, those before it end
        for name in c.loggers:
            log.add(LOGGERS.get_named("log.loggers", name)(workdir, fields))
        if c.wandb_project is not None:
            from vit_jax.learning.loggers.weights_and_biases import WeightsAndBiases

            log.add(
                WeightsAndBiases(workdir, project=c.wandb_project, config=fields, program=program)
            )
        if c.mlflow_experiment is not None:
            from vit_jax.learning.loggers.mlflow_runs import MLflow

            log.add(MLflow(workdir, experiment=c.mlflow_experiment, config=fields, program=program))
        if c.tensorboard:
            from vit_jax.learning.loggers.tensorboard import TensorBoard

            log.add(TensorBoard(workdir, start_step=start_step, config=fields, program=program))
        opening.pop_all()
    return log


def skipped_images(
    c: InputConfig,
    source: Source,
    feed: Feed,
    logged: Sequence[tuple[int, float]],
    *,
    start_step: int,
) -> SkippedImages:
    """Counts bad images, continuing from where the run stopped."""
    return SkippedImages(
        feed.bad_images,
        logged=logged,
        step=start_step,
        batch_size=c.batch_size,
        num_examples=source.num_examples,
        max_fraction=c.max_bad_fraction,
    )


def clock(config: RunConfig, step: StepParts, mesh: Mesh, feed: Feed, *, start_step: int) -> Clock:
    """Measures the speed of the run."""
    batch_size = config.input.batch_size
    return Clock(
        batch_size=batch_size,
        step_flops=step.products.training * batch_size,
        peak_flops=environment.total_peak_flops(mesh, config.log.peak_tflops),
        start_step=start_step,
        total_steps=step.durations.total_steps,
        feed=feed,
    )


def check_disk_space(
    c: CheckpointConfig, workdir: epath.Path, layout: StateLayout, durations: Durations
) -> None:
    """Raises UserError unless the disk has room for the checkpoints of the run."""
    workdirs.check_disk_space(
        workdir,
        checkpoint_bytes=total_bytes(layout.state),
        keep_last=c.keep_last,
        keep_every_steps=c.keep_every_steps,
        keep_best=c.best_metric is not None,
        every_steps=c.every_steps,
        total_steps=durations.total_steps,
    )
