"""The evaluations of a run."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from vit_jax.cluster.peers import Peers
from vit_jax.config import EarlyStoppingConfig, InputConfig, RunConfig, meets_saves
from vit_jax.core import arrays, errors
from vit_jax.core.metric_names import best_mode
from vit_jax.core.screen import Screen
from vit_jax.data.source import NO_LABEL, Source
from vit_jax.evals import KINDS, Evals, Stop
from vit_jax.evals.classification import Scores
from vit_jax.evals.early_stopping import EarlyStopping
from vit_jax.evals.kind import EvalInputs, Shown, SplitReader
from vit_jax.learning.clock import Cadence
from vit_jax.learning.loggers import RunLog
from vit_jax.learning.losses import Batch, Objective
from vit_jax.learning.state import EMA_ENDING
from vit_jax.run import announce
from vit_jax.run.memory import explain_out_of_memory
from vit_jax.run.parts.durations import Durations
from vit_jax.run.parts.eval_data import EvalData, ModelClasses, eval_data
from vit_jax.run.parts.examples import DEVICE
from vit_jax.run.parts.inputs import samples
from vit_jax.run.parts.networks import Model
from vit_jax.run.parts.updates import StepParts, ema_decay


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
        key = functools.partial(_cache_key, config.input, graph=graph)
        # Decoded images on the devices spare a run TensorFlow, which would read files again.
        kept = c.classifies and config.input.cache == DEVICE
        inputs = EvalInputs(
            read=reader(test, graph, mesh),
            read_train=reader(train, graph, mesh) if train else None,
            objective=objective_of_data,
            graph=graph,
            mesh=mesh,
            num_classes=test.source.num_classes,
            class_names=test.source.class_names or tuple(map(str, range(test.source.num_classes))),
            columns=columns,
            images=None if kept else functools.partial(_shown, config.input, test, objective),
            # Without a split to learn from nothing is kept: the files' times need not be read.
            cache_keys=(key(train), key(test)) if train and keep_features else (None, None),
            keep=None if scores is None else functools.partial(scores.__setitem__, name),
        )
        by_name[name] = (c.make(inputs), Cadence(c.every_steps, total_steps))
    return Evals(by_name)


def open_all(
    config: RunConfig, classes: ModelClasses, mesh: Mesh, step: StepParts, attempt: errors.Attempt
) -> tuple[dict[str, EvalData], Evals]:
    """The data of all evaluations, opened and checked, and the evaluations of a run."""

    def make(name: str, number: int, model: Model) -> EvalData:
        known = classes if model.num_classes else ModelClasses(0, None)
        data = eval_data(name, config, known, mesh, model.preprocess.image_size)
        for each in data.parts:
            if each.source.pixels.channels != model.preprocess.channels:
                form, seen = each.source.pixels, model.preprocess.channels
                raise errors.UserError(f"{each.split.where} has {form}, and the model sees {seen}.")
        return data

    layout, objective, durations = step.layout, step.objective, step.durations
    kinds = attempt("evals", check_evals, config)
    attempt("early_stopping", check_early_stopping, config, durations, after=[kinds])
    data = {
        n: attempt(f"evals.{n}", make, n, classes.number, step.model, after=[kinds, mesh])
        for n in config.evals
    }
    made = attempt(
        "evals",
        lambda: evals(
            config, data, layout.graph, mesh, objective, total_steps=durations.total_steps
        ),
        after=[*data.values(), layout, objective, durations, mesh],
    )
    return data, made


class RunEvals:
    """The evaluations while a run goes on, and whether it ends early by their results.

    Attributes:
      early: decides that.
    """

    def __init__(
        self,
        config: RunConfig,
        evals: Evals,
        data: Mapping[str, EvalData],
        stop: Stop,
        peers: Peers,
        screen: Screen,
    ) -> None:
        self._config, self._evals, self._stop, self._peers = config, evals, stop, peers
        self._parts, self._screen = [part for each in data.values() for part in each.parts], screen
        self.early = early_stopping(config.early_stopping)

    def run(self, step: int, weights: Any, done: Collection[str] = ()) -> dict[str, float]:
        """The results of the evaluations that are due, without those in `done`.

        If by these results the run ends early, then of all, as after the last step.
        """
        with_session = (self._screen.bar, self._stop, self._peers.barriers_around)
        run = functools.partial(self._evals.run, step, weights, *with_session)
        with explain_out_of_memory(self._config, evaluating=True):
            # Each process rounds what it computes by itself, such as a probe, as its devices do.
            results = self._peers.from_first(f"results of step {step}", run(done))
            self.early.add(step, results)
            if self.early.stopped:
                results |= run({*done, *results}, last=True)
        announce.bad_images(self._screen, *(part.bad_images for part in self._parts))
        return results

    def catch_up(self, step: int, weights: Any, log: RunLog) -> dict[str, float]:
        """The results that this step missed; those before it are read from the log."""
        known = self._peers.from_first("what was measured", log.values(self.early.metric))
        for at, value in known:
            self.early.add(at, {str(self.early.metric): value})
        done = self._peers.from_first("before the evaluations that were missed", log.row(step))
        return self.run(step, weights, done)


def reader(data: EvalData, graph: nnx.GraphDef, mesh: Mesh) -> Callable[..., SplitReader]:
    """Makes a function that makes readers of an evaluation's data, for a model with this graph."""
    return functools.partial(
        SplitReader,
        graph=graph,
        mesh=mesh,
        open_feed=data.open_feed,
        num_examples=data.source.num_examples,
        where=data.split.where,
    )


def read_images(c: InputConfig, preprocess: str, source: Source, places: Sequence[int]) -> Batch:
    """A batch of an evaluation's images at `places` of `source`, the same on every host."""
    with samples(c, source, preprocess, np.asarray(places, np.int64)) as batches:
        return next(batches)


def _shown(c: InputConfig, data: EvalData, objective: Objective, places: Sequence[int]) -> Shown:
    """The images at these places of a split, of which those behind its end are left out."""
    source = data.source
    places = [place for place in places if place < source.num_examples]
    batch = read_images(c, data.split.preprocess, source, places)
    labels = [None if label == NO_LABEL else int(label) for label in batch["labels"][:, 0]]
    names = source.class_names or tuple(map(str, range(source.num_classes)))
    columns = range(source.num_classes) if data.columns is None else data.columns
    return Shown(
        inputs=np.asarray(objective.images(batch)),
        pixels=arrays.displayed(batch["image"]),
        labels=[None if label is None else columns[label] for label in labels],
        names=names,
        maps={kind.name: batch[kind.name] for kind in source.maps},
        captions=["without a label" if label is None else names[label] for label in labels],
    )


def _cache_key(c: InputConfig, data: EvalData, graph: nnx.GraphDef) -> tuple[str, ...]:
    """Values that the features of a split depend on beside the parameters."""
    split = data.split
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
    endings = ("",) if ema_decay(config.optim, config.method) is None else ("", EMA_ENDING)
    return [
        f"{name}{ending}/{number}"
        for name in (config.evals if names is None else names)
        for ending in endings
        for number in config.evals[name].numbers()
    ]


def check_evals(config: RunConfig) -> None:
    """UserError for an unknown kind, or for a best metric that is never measured or saved."""
    for name, c in config.evals.items():
        KINDS.get_named(f"evals.{name}.kind", c.kind)
        fields = [field for field in ("classes", "labels") if getattr(c, field) is not None]
        if len(fields) > 1 or (fields and not c.classifies):
            with_ = f"evals.{name}.labels" if len(fields) > 1 else f"evals.{name}.kind={c.kind!r}"
            raise errors.UserError(f"evals.{name}.{fields[0]} does not go with {with_}.")
    best = config.checkpoint.best_metric
    if best is not None:
        name = _measured_by("checkpoint.best_metric", best, config)
        every, saves = config.evals[name].every_steps, config.checkpoint
        if not meets_saves(every, saves):
            raise errors.UserError(
                f"is neither a multiple nor a part of checkpoint.every_steps={saves.every_steps}.",
                field=f"evals.{name}.every_steps",
                value=every,
            )


def _measured_by(field: str, metric: str, config: RunConfig) -> str:
    """The evaluation that gives the metric of this field. Raises UserError if there is none."""
    for name in config.evals:
        if metric in metrics(config, [name]):
            return name
    raise errors.UserError(
        f"{field}={metric!r} is given by no evaluation. {errors.nearest(metric, metrics(config))}"
    )


def early_stopping(c: EarlyStoppingConfig) -> EarlyStopping:
    """Decides whether a run ends early; it has seen nothing yet."""
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
        raise errors.UserError(
            f"early_stopping.patience={c.patience} evaluations behind the first never pass before "
            f"the end: evals.{name}.every_steps={every} gives {before_the_end}."
        )
