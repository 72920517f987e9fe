"""input.cache=device: sets of images decoded once, kept on the devices, made into batches there.

What the ops make of an image before the first random one is decoded by the host's pipeline, once;
the random ops run on the devices. So the pixels are those of every other input.cache.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
from jax.sharding import Mesh, NamedSharding

from vit_jax.config import InputConfig
from vit_jax.core import axes
from vit_jax.core.errors import UserError, naming
from vit_jax.core.screen import Screen
from vit_jax.data import decoded
from vit_jax.data.ops import table as ops
from vit_jax.learning.cached_set import CachedSet
from vit_jax.learning.losses import Batch
from vit_jax.parallel.mesh import BATCH_AXES
from vit_jax.run.memory import device_memory
from vit_jax.run.parts.examples import DEVICE, SplitOfRun

# A set that takes more than this of a device's memory is divided between the devices; a smaller one
# is on each of them, which saves an exchange in each step.
REPLICATED_SHARE = 1 / 16


class CachedBytes(NamedTuple):
    """The bytes of a cached set on each device, and whether it is divided between them."""

    on_device: int
    is_divided: bool


def recipe(c: InputConfig, split: SplitOfRun) -> decoded.Recipe:
    """The recipe of the images that are kept."""
    return decoded.Recipe(split.source, split.ops().before_random(), c.max_image_pixels)


def check_cached(c: InputConfig, split: SplitOfRun, mesh: Mesh) -> CachedBytes:
    """Memory that the split takes on each device. Raises UserError if its ops cannot run there."""
    preprocess = split.ops()
    with naming(f"{split.section}.preprocess", repr(split.preprocess)):
        preprocess.on_device()
        size = recipe(c, split).image_size()
        preprocess.on_device(size)
    source = split.source
    return cached_bytes(
        source.num_examples,
        size,
        mesh,
        device_memory(mesh.local_devices[0]),
        max_labels=source.max_labels,
        weighted=source.weighted,
    )


def cached_size(preprocess: str, field: str) -> tuple[int, int]:
    """(height, width) of the kept images, without data; the model's where only files tell theirs.

    UserError for random ops that do not run on devices.
    """
    parsed = ops.parse(preprocess, field=field)
    parsed.on_device()
    size = parsed.before_random().output_size or parsed.output_size
    if size is None:
        raise UserError(f"{field}={preprocess!r} gives images of different sizes.")
    return size


def check_images(c: InputConfig, split: SplitOfRun) -> None:
    """Reads all images that are to be kept; raises UserError if their sizes differ."""
    if c.cache == DEVICE:
        recipe(c, split).check_one_size()


def total_cached(c: InputConfig, sets: Sequence[CachedBytes]) -> int:
    """Bytes of all sets on each device. Raises UserError if they exceed input.cache_bytes."""
    total = sum(each.on_device for each in sets)
    if c.cache_bytes is not None and total > c.cache_bytes:
        raise UserError(
            f"input.cache=device: images take {total:,} bytes of each device, more than "
            f"input.cache_bytes={c.cache_bytes:,}."
        )
    return total


def cached_bytes(
    num_examples: int,
    image_size: tuple[int, int],
    mesh: Mesh,
    device_bytes: int | None,
    *,
    max_labels: int = 1,
    weighted: bool = False,
) -> CachedBytes:
    """Memory that images of (height, width) take on each device, which has `device_bytes`."""
    label_bytes = 4 * max_labels * (2 if weighted else 1)
    whole = num_examples * (3 * image_size[0] * image_size[1] + label_bytes + 4)
    parts = axes.num_devices(BATCH_AXES, mesh.shape)
    limit = None if device_bytes is None else REPLICATED_SHARE * device_bytes
    is_divided = parts > 1 and limit is not None and whole > limit
    return CachedBytes(-(-whole // parts) if is_divided else whole, is_divided)


def cached_set(c: InputConfig, split: SplitOfRun, layout: Batch) -> CachedSet:
    """The split on the devices, decoded first if necessary. Raises UserError for bad images.

    `layout`: shapes and shardings of its batches.
    """
    sharding = layout["weight"].sharding
    assert isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh)
    there = check_cached(c, split, sharding.mesh)
    screen = Screen(quiet=jax.process_index() > 0)
    stored = recipe(c, split).load_or_decode(
        on_bad_image=c.on_bad_image,
        threads=c.threads,
        progress=functools.partial(screen.bar, f"decoding {split.where}"),
    )
    return CachedSet(stored, split.ops().on_device(), layout, is_divided=there.is_divided)
