"""The mesh, the training data, and the batches that arrive on the mesh."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import numpy as np
from jax.sharding import Mesh

from vit_jax import step
from vit_jax.config import InputConfig, MeshConfig, RunConfig
from vit_jax.core import errors
from vit_jax.dist import mesh as meshes
from vit_jax.feed import Feed, own_rows
from vit_jax.objective import Batch
from vit_jax.screen import Screen

if TYPE_CHECKING:
    from vit_jax.data.batches import Batches
    from vit_jax.data.example import Source
    from vit_jax.data.label_index import Labels


def mesh(c: MeshConfig) -> Mesh:
    """The devices of the run."""
    return meshes.make_mesh(replica=c.replica, data=c.data, fsdp=c.fsdp, tensor=c.tensor)


def source(c: InputConfig) -> Source:
    """The training data, or the subset of them that is asked for; opened, checked, not yet read."""
    from vit_jax.data import sources, subset

    _check_subset(c)
    whole = sources.create(
        c.source,
        data_dir=c.data_dir,
        split=c.split,
        num_examples=c.num_examples,
        num_classes=c.num_classes,
        image_size=image_size(c.preprocess, "input.preprocess"),
        where="input",
    )
    if c.subset_per_class is not None:
        return subset.of_each_class(whole, c.subset_per_class, _labels(whole))
    size = _subset_size(c, whole.num_examples)
    return whole if size is None else subset.first(whole, size)


def declared_examples(c: InputConfig) -> int | None:
    """How many examples an epoch has, by what the config declares.

    None if it does not, or if that depends on the labels: for a subset by class.
    """
    _check_subset(c)
    if c.num_examples is None or c.subset_per_class is not None:
        return None
    return _subset_size(c, c.num_examples) or c.num_examples


def _subset_size(c: InputConfig, num_examples: int) -> int | None:
    """Of `num_examples`; None: no subset by fraction or number is asked for."""
    from vit_jax.data import subset

    return subset.size(num_examples, fraction=c.subset_fraction, examples=c.subset_examples)


def _check_subset(c: InputConfig) -> None:
    """UserError if more than one kind of subset is asked for."""
    fields = ("subset_fraction", "subset_examples", "subset_per_class")
    given = [f"input.{name}" for name in fields if getattr(c, name) is not None]
    if len(given) > 1:
        raise errors.UserError(f"Give one of {', '.join(given)}; {len(given)} are set.")


def _labels(source: Source) -> Labels:
    """Of all examples, with a bar if they have to be read."""
    from vit_jax.data import label_index

    screen = Screen(quiet=jax.process_index() > 0)
    return label_index.find(source, lambda done, of: screen.bar("reading labels", done, of))


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


def check_batch(config: RunConfig, mesh: Mesh) -> None:
    """UserError unless a training batch divides over the mesh."""
    batch_size, parts = config.input.batch_size, config.optim.accumulate
    meshes.check_batch(mesh, batch_size, "input.batch_size", parts=parts)


def batch_layout(config: RunConfig, source: Source, mesh: Mesh) -> Batch:
    """Shapes and shardings of a training batch."""
    c = config.input
    check_batch(config, mesh)
    return step.batch_layout(
        mesh,
        batch_size=c.batch_size,
        image_size=image_size(c.preprocess, "input.preprocess"),
        max_labels=source.max_labels,
    )


def train_batches(
    config: RunConfig, source: Source, *, start_step: int, rows: np.ndarray | None = None
) -> Batches:
    """`rows` (None: all) of the batches from step `start_step` on, counted from 0."""
    from vit_jax.data import pipeline

    c = config.input
    return pipeline.train_batches(
        source,
        c.preprocess,
        batch_size=c.batch_size,
        seed=config.seed,
        start_step=start_step,
        on_bad_image=c.on_bad_image,
        max_image_pixels=c.max_image_pixels,
        threads=c.threads,
        rows=rows,
    )


def train_feed(config: RunConfig, source: Source, layout: Batch, *, start_step: int) -> Feed:
    """The same batches, on the mesh; each process reads the rows of its own devices."""
    rows = own_rows(layout["weight"])
    batches = train_batches(config, source, start_step=start_step, rows=rows)
    return Feed(batches, layout, timeout_secs=config.input.timeout_secs)


def samples(c: InputConfig, source: Source, preprocess: str, indices: np.ndarray) -> Batches:
    """One batch: these examples of a split, prepared as an evaluation prepares them."""
    from vit_jax.data import pipeline
    from vit_jax.data.chosen import listed

    return pipeline.eval_batches(
        listed(source, indices),
        preprocess,
        batch_size=len(indices),
        on_bad_image=c.on_bad_image,
        max_image_pixels=c.max_image_pixels,
        threads=c.threads,
    )
