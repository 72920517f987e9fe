"""The evaluations of a run; their data are opened and checked."""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from flax import nnx
from jax.sharding import Mesh

from vit_jax.config import RunConfig
from vit_jax.core import errors
from vit_jax.data.source import Source
from vit_jax.parallel import mesh as meshes
from vit_jax.run.parts.device_cache import SplitOfRun, cached_set, is_cached
from vit_jax.run.parts.examples import open_split
from vit_jax.run.parts.preprocessing import image_size
from vit_jax.training import step
from vit_jax.training.clock import Cadence
from vit_jax.training.evals import EVALUATORS, Evals
from vit_jax.training.feed import BadImages, Feed, own_rows
from vit_jax.training.objective import Objective
from vit_jax.training.state import EMA_ENDING
from vit_jax.weights import config_json


class ModelClasses(NamedTuple):
    """The classes that a model distinguishes."""

    number: int
    names: tuple[str, ...] | None


class EvalData(NamedTuple):
    """The data of an evaluation.

    Attributes:
      split: what is evaluated on.
      open_feed: opens it anew, and gives its feed and its number of batches.
      bad_images: this host's bad images that were skipped so far.
    """

    split: SplitOfRun
    open_feed: Callable[[], tuple[Feed, int]]
    bad_images: BadImages

    @property
    def source(self) -> Source:
        """The examples."""
        return self.split.source


def evals(
    config: RunConfig,
    data: Mapping[str, EvalData],
    graph: nnx.GraphDef,
    mesh: Mesh,
    objective: Objective,
    *,
    total_steps: int,
) -> Evals:
    """The evaluations of the run, with the `data` of each."""
    made = {}
    for name, c in config.evals.items():
        evaluator = EVALUATORS[c.kind](
            graph=graph,
            mesh=mesh,
            objective=objective,
            open_feed=data[name].open_feed,
            num_examples=data[name].source.num_examples,
            label_threshold=c.label_threshold,
            where=f"evals.{name}",
        )
        made[name] = (evaluator, Cadence(c.every_steps, total_steps))
    return Evals(made)


def check_evals(config: RunConfig) -> None:
    """UserError for an unknown kind, or for a best metric that is never measured."""
    for name, c in config.evals.items():
        if c.kind not in EVALUATORS:
            raise errors.UserError(
                f"evals.{name}.kind={c.kind!r} is not an evaluation. "
                f"{errors.nearest(c.kind, EVALUATORS)}"
            )
    best = config.checkpoint.best_metric
    endings = ("",) if config.optim.ema_decay is None else ("", EMA_ENDING)
    there = [
        f"{name}{ending}/{number}"
        for name, c in config.evals.items()
        for ending in endings
        for number in EVALUATORS[c.kind].numbers
    ]
    if best is not None and best not in there:
        raise errors.UserError(
            f"checkpoint.best_metric={best!r} is given by no evaluation. "
            f"{errors.nearest(best, there)}"
        )


def eval_data(
    name: str, config: RunConfig, classes: ModelClasses, mesh: Mesh, wanted: tuple[int, int]
) -> EvalData:
    """The data of an evaluation of models that take images of the size `wanted`; checked now."""
    c, input = config.evals[name], config.input
    size = image_size(c.preprocess, f"evals.{name}.preprocess")
    if size != wanted:
        raise errors.UserError(
            f"evals.{name}.preprocess gives images of {size}, the model takes {wanted}."
        )
    batch_size = _batch_size(name, config)
    meshes.check_batch(mesh, batch_size, f"evals.{name}.batch_size")
    source = eval_source(name, config, classes.number)
    theirs, ours = source.class_names, classes.names
    if theirs and ours and not config_json.same_classes(theirs, ours):
        raise errors.UserError(
            f"evals.{name} has other classes than the model, or has them in another "
            "order: its accuracy would mean nothing."
        )
    arrays = step.batch_layout(
        mesh,
        batch_size=batch_size,
        image_size=size,
        max_labels=source.max_labels,
        weighted=source.weighted,
    )

    bad_images = BadImages()  # shared by all its runs, so that each image is named once
    rows, num_batches = own_rows(arrays["weight"]), math.ceil(source.num_examples / batch_size)
    split = SplitOfRun(f"evals.{name}", source, c.preprocess)
    cached = functools.cache(lambda: cached_set(config, split, classes.number, arrays))

    def open_feed() -> tuple[Feed, int]:
        from vit_jax.data import decoded, pipeline

        told: dict[str, Any] = {"timeout_secs": input.timeout_secs, "bad_images": bad_images}
        if is_cached(input):
            stored, ops = cached().decoded, cached().ops
            slots = decoded.eval_slots(stored, ops, batch_size=batch_size, rows=rows)
            return cached().feed(slots, **told), num_batches
        batches = pipeline.eval_batches(
            source,
            c.preprocess,
            batch_size=batch_size,
            on_bad_image=input.on_bad_image,
            max_image_pixels=input.max_image_pixels,
            threads=input.threads,
            rows=rows,
        )
        return Feed(batches, arrays, **told), num_batches

    return EvalData(split, open_feed, bad_images)


def eval_source(name: str, config: RunConfig, num_classes: int) -> Source:
    """The split of an evaluation of models with so many classes; opened, checked, not yet read."""
    c, input = config.evals[name], config.input
    kind = c.source or input.source
    return open_split(
        input,
        f"evals.{name}",
        source=c.source,
        data_dir=c.data_dir,
        split=c.split,
        num_examples=_batch_size(name, config) if kind == "synthetic" else None,
        num_classes=num_classes,
        image_size=image_size(c.preprocess, f"evals.{name}.preprocess"),
    )


def _batch_size(name: str, config: RunConfig) -> int:
    own = config.evals[name].batch_size
    return config.input.batch_size if own is None else own
