"""The mesh, the training data, and the batches that arrive on the mesh."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import jax
import numpy as np
from jax.sharding import Mesh

from vit_jax.config import InputConfig, MeshConfig, RunConfig
from vit_jax.core import errors
from vit_jax.core.arrays import RGB, Pixels
from vit_jax.core.errors import NOT_MADE
from vit_jax.data import streams
from vit_jax.learning import losses
from vit_jax.learning import step as steps
from vit_jax.learning.feed import Feed, local_rows
from vit_jax.learning.losses import Batch, Objective
from vit_jax.learning.method import view_names
from vit_jax.parallel import mesh as meshes
from vit_jax.run import memory
from vit_jax.run.parts.examples import DEVICE, SplitOfRun, in_memory, stream
from vit_jax.run.parts.preprocessing import image_size, view_sizes

if TYPE_CHECKING:
    from vit_jax.data.bad_images import Fault
    from vit_jax.data.pipeline import Batches
    from vit_jax.data.source import Source
    from vit_jax.run.parts.eval_data import EvalData


def mesh(c: MeshConfig) -> Mesh:
    """The devices of the run."""
    return meshes.make_mesh(replica=c.replica, data=c.data, fsdp=c.fsdp, tensor=c.tensor)


def check_batch(c: InputConfig, mesh: Mesh, *, parts: int, pixels: Pixels = RGB) -> None:
    """Raises UserError unless a training batch divides over the mesh and fits into its memory.

    parts: optim.grad_accum_steps. pixels: the form of the images.
    """
    meshes.check_batch(mesh, c.batch_size, "input.batch_size", parts=parts)
    size, device = image_size(c.preprocess, "input.preprocess"), mesh.devices.flat[0]
    given = size, device, mesh.size
    memory.check_batch_fits("input.batch_size", c.batch_size, *given, pixels=pixels, parts=parts)


def batch_layout(c: InputConfig, source: Source, mesh: Mesh) -> Batch:
    """Shapes and shardings of a training batch that `check_batch` takes."""
    return losses.batch_layout(
        mesh,
        batch_size=c.batch_size,
        image_size=image_size(c.preprocess, "input.preprocess"),
        views=view_sizes(c),
        max_labels=source.max_labels,
        weighted=source.weighted,
        maps=[kind.name for kind in source.maps],
        pixels=source.pixels,
    )


def cached_bytes(
    c: InputConfig, mesh: Mesh, source: Source, evals: Iterable[EvalData], attempt: errors.Attempt
) -> int:
    """Bytes of images on each device; 0 unless input.cache=device."""
    if c.cache != DEVICE:
        return 0
    from vit_jax.run.parts import device_cache

    splits = [part.split for each in evals if each is not NOT_MADE for part in each.parts]
    splits += [SplitOfRun("input", source, c.preprocess)] * (source is not NOT_MADE)
    return device_cache.check_all(c, splits, mesh, attempt)


def train_batches(
    c: InputConfig, source: Source, *, seed: int, start_step: int, rows: np.ndarray | None = None
) -> Batches:
    """`rows` (None: all) of the batches from step `start_step` on, counted from 0."""
    from vit_jax.data import pipeline

    return pipeline.train_batches(
        in_memory(c, source),
        c.preprocess,
        batch_size=c.batch_size,
        seed=seed,
        start_step=start_step,
        on_bad_image=c.on_bad_image,
        max_image_pixels=c.max_image_pixels,
        threads=c.threads,
        rows=rows,
        stream=stream(c, source, seed=seed),
        views=dict(zip(view_names(len(c.views)), c.views, strict=True)),
    )


def train_feed(
    c: InputConfig, source: Source, layout: Batch, *, seed: int, start_step: int
) -> Feed:
    """The same batches, on the mesh; each process reads the rows of its own devices.

    With input.cache=device, their images are made there.
    """
    rows = local_rows(layout["weight"])
    if c.cache == DEVICE:
        from vit_jax.run.parts.device_cache import DeviceCache

        cached = DeviceCache(c, SplitOfRun("input", source, c.preprocess)).load(layout)
        order = stream(c, source, seed=seed)
        choose = streams.train_slots(order, rows, c.batch_size, seed)
        return cached.feed(choose, itertools.count(start_step), timeout_secs=c.timeout_secs)
    batches = train_batches(c, source, seed=seed, start_step=start_step, rows=rows)
    return Feed(batches, layout, timeout_secs=c.timeout_secs)


def first_examples(
    config: RunConfig,
    objective: Objective,
    batch: Batch,
    *,
    step: int,
    number: int,
    mesh: Mesh | None = None,
) -> dict[str, jax.Array]:
    """The first examples of the batch of a step as it learns from them, after mixup and CutMix.

    Images [N, H, W, 3], targets [N, C], weight [N], whether an image is good [N], further views
    uint8 [N, h, w, 3] each, and of a batch of the host the images' index [N].

    mesh: of the batch, where it lies on devices; all of its processes have to call this.
    """

    def first(arrays: Batch) -> dict[str, jax.Array]:
        # All of the batch is mixed: the partner of an example may lie anywhere in it.
        mixed = steps.examples(arrays, objective, seed=config.seed, done=step - 1)
        views = {name: arrays[name] for name in view_names(len(config.input.views))}
        named = dict(zip(("images", "targets", "weight"), mixed, strict=True))
        return jax.tree.map(lambda x: x[:number], named | {"is_good": arrays["weight"]} | views)

    on_devices = {name: x for name, x in batch.items() if name != "index"}
    everywhere = None if mesh is None else meshes.replicated(mesh)
    index = {"index": batch["index"]} if "index" in batch else {}
    return jax.jit(first, out_shardings=everywhere)(on_devices) | index


def find_bad_images(
    c: InputConfig, source: Source, preprocess: str, progress: Callable[[int, int], None]
) -> Iterator[Fault]:
    """Bad images of a split, each image read and decoded by one process."""
    from vit_jax.data.bad_images import bad_images

    own = np.arange(jax.process_index(), source.num_examples, jax.process_count())
    return bad_images(
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
