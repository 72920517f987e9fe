"""The mesh, the training data, and the batches that arrive on the mesh."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import jax
import numpy as np
from jax.sharding import Mesh

from vit_jax.config import InputConfig, MeshConfig, RunConfig
from vit_jax.data import streams
from vit_jax.learning import losses
from vit_jax.learning.feed import Feed, local_rows
from vit_jax.learning.losses import Batch
from vit_jax.learning.method import view_names
from vit_jax.parallel import mesh as meshes
from vit_jax.run.parts import device_cache
from vit_jax.run.parts.device_cache import SplitOfRun
from vit_jax.run.parts.examples import in_memory, stream
from vit_jax.run.parts.preprocessing import image_size, view_sizes

if TYPE_CHECKING:
    from vit_jax.data.pipeline import Batches, Fault
    from vit_jax.data.source import Source


def mesh(c: MeshConfig) -> Mesh:
    """The devices of the run."""
    return meshes.make_mesh(replica=c.replica, data=c.data, fsdp=c.fsdp, tensor=c.tensor)


def check_batch(config: RunConfig, mesh: Mesh) -> None:
    """Raises UserError unless a training batch divides over the mesh."""
    batch_size, parts = config.input.batch_size, config.optim.grad_accum_steps
    meshes.check_batch(mesh, batch_size, "input.batch_size", parts=parts)


def batch_layout(config: RunConfig, source: Source, mesh: Mesh) -> Batch:
    """Shapes and shardings of a training batch."""
    c = config.input
    check_batch(config, mesh)
    return losses.batch_layout(
        mesh,
        batch_size=c.batch_size,
        image_size=image_size(c.preprocess, "input.preprocess"),
        views=view_sizes(c),
        max_labels=source.max_labels,
        weighted=source.weighted,
    )


def train_batches(
    config: RunConfig, source: Source, *, start_step: int, rows: np.ndarray | None = None
) -> Batches:
    """`rows` (None: all) of the batches from step `start_step` on, counted from 0."""
    from vit_jax.data import pipeline

    c = config.input
    return pipeline.train_batches(
        in_memory(c, source),
        c.preprocess,
        batch_size=c.batch_size,
        seed=config.seed,
        start_step=start_step,
        on_bad_image=c.on_bad_image,
        max_image_pixels=c.max_image_pixels,
        threads=c.threads,
        rows=rows,
        stream=stream(c, source, seed=config.seed),
        views=dict(zip(view_names(len(c.views)), c.views, strict=True)),
    )


def train_feed(config: RunConfig, source: Source, layout: Batch, *, start_step: int) -> Feed:
    """The same batches, on the mesh; each process reads the rows of its own devices.

    With input.cache=device, their images are made there.
    """
    c, rows = config.input, local_rows(layout["weight"])
    if device_cache.is_cached(c):
        cached = device_cache.cached_set(c, SplitOfRun("input", source, c.preprocess), layout)
        order = stream(c, source, seed=config.seed)
        choose = streams.train_slots(order, rows, c.batch_size, config.seed)
        return cached.feed(choose, itertools.count(start_step), timeout_secs=c.timeout_secs)
    batches = train_batches(config, source, start_step=start_step, rows=rows)
    return Feed(batches, layout, timeout_secs=c.timeout_secs)


def bad_images(
    c: InputConfig, source: Source, preprocess: str, progress: Callable[[int, int], None]
) -> Iterator[Fault]:
    """Bad images of a split, each image read and decoded by one process; see pipeline.py."""
    from vit_jax.data import pipeline

    own = np.arange(jax.process_index(), source.num_examples, jax.process_count())
    return pipeline.bad_images(
        source,
        preprocess,
        own,
        max_image_pixels=c.max_image_pixels,
        threads=c.threads,
        progress=progress,
    )


def samples(c: InputConfig, source: Source, preprocess: str, indices: np.ndarray) -> Batches:
    """A single batch of these examples of a split, prepared as in an evaluation."""
    from vit_jax.data import pipeline
    from vit_jax.data.source import select_examples

    return pipeline.eval_batches(
        select_examples(source, indices),
        preprocess,
        batch_size=len(indices),
        on_bad_image=c.on_bad_image,
        max_image_pixels=c.max_image_pixels,
        threads=c.threads,
    )
