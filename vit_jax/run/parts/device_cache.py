"""input.cache=device: sets of images decoded once, kept on the devices, made into batches there.

What the ops make of an image before the first random one is decoded by the host's pipeline, in a
process of its own that may import TensorFlow, and kept in the user's cache folder; the random ops
run on the devices. So the pixels are those of every other input.cache.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import filelock
import jax
from etils import epath
from jax.sharding import Mesh, NamedSharding

from vit_jax import config as configs
from vit_jax.config import InputConfig, RunConfig
from vit_jax.core import axes
from vit_jax.core.errors import UserError
from vit_jax.core.schema import entry_points
from vit_jax.core.screen import Screen
from vit_jax.data import decoded
from vit_jax.data.ops import table as ops
from vit_jax.data.source import Source
from vit_jax.parallel.mesh import BATCH_AXES
from vit_jax.run.memory import device_memory
from vit_jax.store import disk_space
from vit_jax.training.device_feed import CachedSet
from vit_jax.training.objective import Batch

DEVICE = "device"
OF_TRAIN = ".train_split"
# A set that takes more than this of a device's memory is divided between the devices; a smaller one
# is on each of them, which saves an exchange in each step.
REPLICATED_SHARE = 1 / 16


class SplitOfRun(NamedTuple):
    """A split that a run reads.

    Attributes:
      where: the config's section, "input" or "evals.<name>"; with OF_TRAIN behind it the split that
        an evaluation learns from.
      source: its examples.
      preprocess: its ops.
    """

    where: str
    source: Source
    preprocess: str

    @property
    def section(self) -> str:
        """The config's section alone."""
        return self.where.removesuffix(OF_TRAIN)

    def ops(self) -> ops.Preprocess:
        """The parsed ops."""
        return ops.parse(self.preprocess, field=f"{self.section}.preprocess")


class CachedBytes(NamedTuple):
    """The bytes of a cached set on each device, and whether it is divided between them."""

    on_device: int
    is_divided: bool


def is_cached(c: InputConfig) -> bool:
    """Whether the images of the run are kept on the devices."""
    return c.cache == DEVICE


def check_cached(c: InputConfig, split: SplitOfRun, mesh: Mesh) -> CachedBytes:
    """What the split takes of each device. UserError if its ops cannot run there."""
    preprocess = split.ops()
    try:
        preprocess.on_device()
        size = decoded.image_size(
            split.source, preprocess.before_random(), max_image_pixels=c.max_image_pixels
        )
    except UserError as error:
        raise UserError(f"{split.section}.preprocess={split.preprocess!r}: {error}") from error
    source = split.source
    return cached_bytes(
        source.num_examples,
        size,
        mesh,
        device_memory(mesh.local_devices[0]),
        max_labels=source.max_labels,
        weighted=source.weighted,
    )


def check_folder(c: InputConfig, splits: Sequence[SplitOfRun]) -> None:
    """UserError if a split is not decoded and cannot be, since nothing can be written."""
    if all(_is_whole(_folder(c, split)) for split in splits):
        return
    folder = decoded.home()
    try:
        disk_space.try_writing(epath.Path(folder))
    except OSError as error:
        raise _not_writable(folder, error) from error


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
    """UserError if an image cannot be kept beside the others; reads all, if they are to be kept."""
    if is_cached(c):
        preprocess = split.ops().before_random()
        decoded.check_one_size(split.source, preprocess, max_image_pixels=c.max_image_pixels)


def total_cached(c: InputConfig, sets: Sequence[CachedBytes]) -> int:
    """Bytes of all sets on each device. UserError if they are more than input.cache_bytes."""
    total = sum(each.on_device for each in sets)
    if c.cache_bytes is not None and total > c.cache_bytes:
        raise UserError(
            f"input.cache=device: the images of training and evaluations take {total:,} bytes of "
            f"each device, more than input.cache_bytes={c.cache_bytes:,}. Raise that, take more "
            "devices, or set input.cache=ram, which keeps images on the host."
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
    """What a set of images of (height, width) takes of each device, which has `device_bytes`."""
    of_labels = 4 * max_labels * (2 if weighted else 1)
    whole = num_examples * (3 * image_size[0] * image_size[1] + of_labels + 4)
    parts = axes.num_devices(BATCH_AXES, mesh.shape)
    limit = None if device_bytes is None else REPLICATED_SHARE * device_bytes
    is_divided = parts > 1 and limit is not None and whole > limit
    return CachedBytes(-(-whole // parts) if is_divided else whole, is_divided)


def cached_set(config: RunConfig, split: SplitOfRun, num_classes: int, layout: Batch) -> CachedSet:
    """The split on the devices, decoded before if that was not done. UserError for bad images.

    `layout`: shapes and shardings of its batches.
    """
    c = config.input
    sharding = layout["weight"].sharding
    assert isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh)
    there = check_cached(c, split, sharding.mesh)
    (folder,) = decode(config, [split], num_classes).values()
    stored = decoded.load(folder)
    if stored.faults and c.on_bad_image == "fail":
        raise UserError(
            f"{next(iter(stored.faults.values()))}: this is a bad image. Replace it, or set "
            'input.on_bad_image="skip" to give such images weight 0.'
        )
    return CachedSet(stored, split.ops().on_device(), layout, is_divided=there.is_divided)


def decode(config: RunConfig, splits: Sequence[SplitOfRun], num_classes: int) -> dict[str, Path]:
    """The folders of the decoded splits, by their section; made if they are not there.

    Does nothing unless input.cache=device.
    """
    if not is_cached(config.input):
        return {}
    folders = {split.where: _folder(config.input, split) for split in splits}
    if all(map(_is_whole, folders.values())):  # the folder may be one that cannot be written
        return folders
    # One process of a host decodes, the others wait for it.
    with _locked(decoded.home()):
        # Two evaluations may be of one split.
        different = {folders[split.where]: split for split in reversed(splits)}
        missing = [split for folder, split in different.items() if not _is_whole(folder)]
        for split in missing:
            shutil.rmtree(folders[split.where], ignore_errors=True)
        screen = Screen(quiet=jax.process_index() > 0)
        if "tensorflow" in sys.modules:
            for split in missing:
                bar = functools.partial(screen.bar, f"decoding {split.where}")
                decode_here(config.input, split, folders[split.where], bar)
        elif missing:
            decode_apart(config, {s.where: folders[s.where] for s in missing}, num_classes, screen)
    return folders


def decode_here(
    c: InputConfig, split: SplitOfRun, folder: Path, progress: Callable[[int, int], None]
) -> None:
    """Decodes a split into its folder, in this process. What `progress` raises ends it."""
    try:
        decoded.decode(
            split.source,
            split.ops().before_random(),
            folder,
            on_bad_image=c.on_bad_image,
            max_image_pixels=c.max_image_pixels,
            threads=c.threads,
            progress=progress,
        )
    except BrokenPipeError:  # of `progress`: nobody reads
        raise
    except OSError as error:
        raise _not_writable(folder, error) from error


def decode_apart(
    config: RunConfig, folders: Mapping[str, Path], num_classes: int, screen: Screen
) -> None:
    """Decodes splits in another process, which ends with this one; see run/decode.py."""
    job: dict[str, Any] = {
        "config": configs.to_dict(config),
        "num_classes": num_classes,
        "folders": {where: str(folder) for where, folder in folders.items()},
    }
    entry_points.refuse_added(job["config"], where="input.cache=device")
    # Not a peer of this process, whose devices are taken; Ctrl-C is this one's to answer.
    with subprocess.Popen(
        [sys.executable, "-m", "vit_jax.run.decode"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        start_new_session=True,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(job))
        process.stdin.close()
        for line in process.stdout:
            if not line.startswith("{"):  # packages print too
                continue
            told = json.loads(line)
            if "error" in told:
                raise UserError(told["error"])
            screen.bar(f"decoding {told['where']}", told["done"], told["total"])
    if process.returncode:
        raise RuntimeError(f"The process that decodes ended with status {process.returncode}.")


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Holds the lock of a folder, which is made if it is not there. UserError if that fails."""
    lock = filelock.FileLock(folder / ".lock")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except (OSError, NotImplementedError) as error:  # read-only, full, or without locks
        raise _not_writable(folder, error) from error
    try:
        yield
    finally:
        lock.release()


def _not_writable(folder: Path, error: Exception) -> UserError:
    return UserError(
        f"input.cache=device: {folder} cannot be written: "
        f"{getattr(error, 'strerror', None) or error}. Make room, set XDG_CACHE_HOME to another "
        "folder, or set input.cache=ram, which needs none."
    )


def _folder(c: InputConfig, split: SplitOfRun) -> Path:
    preprocess = str(split.ops().before_random())
    return decoded.folder(split.source, preprocess, max_image_pixels=c.max_image_pixels)


def _is_whole(folder: Path) -> bool:
    """Whether a folder is there and has what was written."""
    try:
        decoded.verify(folder)
    except (OSError, ValueError):
        return False
    return True
