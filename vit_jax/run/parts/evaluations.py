"""The evaluations of a run."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from vit_jax.config import RunConfig
from vit_jax.core import errors
from vit_jax.core.metric_names import best_mode
from vit_jax.data.source import NO_LABEL, Source
from vit_jax.evals import KINDS, Evals
from vit_jax.evals.classification import Scores
from vit_jax.evals.kind import EvalInputs, Shown, SplitReader
from vit_jax.learning.clock import Cadence, EarlyStopping
from vit_jax.learning.losses import Batch, Objective
from vit_jax.learning.state import EMA_ENDING
from vit_jax.run.parts.durations import Durations, check_meets_saves
from vit_jax.run.parts.eval_data import EvalData
from vit_jax.run.parts.inputs import samples
from vit_jax.run.parts.updates import ema_decay


def evals(
    config: RunConfig,
    data: Mapping[str, EvalData],
    graph: nnx.GraphDef,
    mesh: Mesh,
    objective: Objective,
    *,
    total_steps: int,
    keep_features: bool = False,
    scores: dict[str, Scores] | None = None,
) -> Evals:
    """The evaluations of the run, with the `data` of each.

    keep_features: on disk, for weights that are not trained on.
    scores: gets those of all images, by the names of evaluations that classify.
    """
    by_name = {}
    for name, c in config.evals.items():
        test, train, columns = data[name], data[name].train, data[name].columns
        objective_of_data = objective
        if columns is not None:  # some of the model's classes, or all in another order
            objective_of_data = dataclasses.replace(objective, num_classes=len(columns))
        key = functools.partial(_cache_key, config, graph=graph)
        inputs = EvalInputs(
            read=reader(test, graph, mesh),
            read_train=reader(train, graph, mesh) if train else None,
            objective=objective_of_data,
            graph=graph,
            mesh=mesh,
            num_classes=test.source.num_classes,
            columns=columns,
            images=functools.partial(_shown, name, config, test, objective),
            # Without a split to learn from nothing is kept: the files' times need not be read.
            cache_keys=(key(train), key(test)) if train and keep_features else (None, None),
            keep=None if scores is None else functools.partial(scores.__setitem__, name),
        )
        by_name[name] = (c.make(inputs), Cadence(c.every_steps, total_steps))
    return Evals(by_name)


def reader(data: EvalData, graph: nnx.GraphDef, mesh: Mesh) -> Callable[..., SplitReader]:
    """What makes readers of an evaluation's data, by a model with this graph."""
    return functools.partial(
        SplitReader,
        graph=graph,
        mesh=mesh,
        open_feed=data.open_feed,
        num_examples=data.source.num_examples,
        where=data.split.where,
    )


def read_images(name: str, config: RunConfig, source: Source, places: Sequence[int]) -> Batch:
    """A batch of an evaluation's images at `places` of `source`, the same on every host."""
    indices = np.asarray(places, np.int64)
    with samples(config.input, source, config.evals[name].preprocess, indices) as batches:
        return next(batches)


def _shown(
    name: str, config: RunConfig, data: EvalData, objective: Objective, number: int
) -> Shown:
    """The first images of a split."""
    source = data.source
    batch = read_images(name, config, source, range(min(number, source.num_examples)))
    labels = [None if label == NO_LABEL else int(label) for label in batch["labels"][:, 0]]
    names = source.class_names or tuple(map(str, range(source.num_classes)))
    places = range(source.num_classes) if data.columns is None else data.columns
    return Shown(
        inputs=np.asarray(objective.images(batch)),
        pixels=batch["image"],
        labels=[None if label is None else places[label] for label in labels],
        captions=["without a label" if label is None else names[label] for label in labels],
    )


def _cache_key(config: RunConfig, data: EvalData, graph: nnx.GraphDef) -> tuple[str, ...]:
    """What the features of a split depend on beside the parameters."""
    split, c = data.split, config.input
    return (
        split.source.fingerprint,
        split.source.stamp(),
        split.preprocess,
        f"{c.mean} {c.std} {c.on_bad_image} {c.max_image_pixels}",
        re.sub(r" at 0x\w+", "", repr(graph)),
        f"{jax.devices()[0].device_kind} {jax.__version__}",
        f"{jax.config.jax_default_matmul_precision}",
    )


def metrics(config: RunConfig, names: Iterable[str] | None = None) -> list[str]:
    """The names of the numbers that evaluations give, or those of these names: "test/accuracy"."""
    endings = ("",) if ema_decay(config) is None else ("", EMA_ENDING)
    return [
        f"{name}{ending}/{number}"
        for name in (config.evals if names is None else names)
        for ending in endings
        for number in config.evals[name].numbers()
    ]


def check_evals(config: RunConfig) -> None:
    """UserError for an unknown kind, or for a best metric that is never measured or saved."""
    for name, c in config.evals.items():
        if KINDS.find(c.kind) is None:
            raise errors.UserError(
                f"evals.{name}.kind={c.kind!r} is not an evaluation. "
                f"{errors.nearest(c.kind, KINDS.names())}"
            )
        fields = [field for field in ("classes", "labels") if getattr(c, field) is not None]
        if len(fields) > 1 or (fields and not c.classifies):
            with_ = f"evals.{name}.labels" if len(fields) > 1 else f"evals.{name}.kind={c.kind!r}"
            raise errors.UserError(
                f"evals.{name}.{fields[0]} says which of ImageNet's classes images are, and does "
                f"not go with {with_}. Take one of them away."
            )
    best = config.checkpoint.best_metric
    if best is not None:
        name = _measured_by("checkpoint.best_metric", best, config)
        check_meets_saves(f"evals.{name}.every_steps", config.evals[name].every_steps, config)


def _measured_by(field: str, metric: str, config: RunConfig) -> str:
    """The evaluation that gives the metric of this field. Raises UserError if there is none."""
    for name in config.evals:
        if metric in metrics(config, [name]):
            return name
    raise errors.UserError(
        f"{field}={metric!r} is given by no evaluation. {errors.nearest(metric, metrics(config))}"
    )


def early_stopping(config: RunConfig) -> EarlyStopping:
    """Decides whether a run ends early; it has seen nothing yet."""
    c = config.early_stopping
    return EarlyStopping(c.metric, best_mode(c.metric, c.mode), c.patience, c.min_delta)


def check_early_stopping(config: RunConfig, durations: Durations) -> None:
    """UserError for a metric that is never measured, or too seldom to end a run."""
    c = config.early_stopping
    if c.metric is None:
        return
    name = _measured_by("early_stopping.metric", c.metric, config)
    every, total = config.evals[name].every_steps, durations.total_steps
    before_the_end = 0 if every is None else (total - 1) // every
    if before_the_end <= c.patience:
        most = (total - 1) // (c.patience + 1)
        advice = f"evals.{name}.every_steps to at most {most:,}"
        if not most:
            advice = f"evals.{name}.every_steps to 1 and early_stopping.patience below {total - 1}"
        raise errors.UserError(
            f"early_stopping.patience={c.patience} evaluations behind the first never pass before "
            f"the end: evals.{name}.every_steps={every} gives {before_the_end} before the last of "
            f"{total:,} steps. Set {advice}, or early_stopping.metric=none."
        )
