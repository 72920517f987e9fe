"""input.cache=device: sets of images decoded once, kept on the devices, made into batches there.

What the ops make of an image before the first random one is decoded by the host's pipeline, once;
the random ops run on the devices. So the pixels are those of every other input.cache. What was
decoded is kept in a file of numpy.savez too, in the user's cache folder, so that later starts read
it without TensorFlow: the arrays of Decoded, and

    faults         a text                JSON, {"<example>": "<file>: <fault>"} of the bad images
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from vit_jax.config import InputConfig
from vit_jax.core import axes
from vit_jax.core.errors import Attempt, UserError, naming
from vit_jax.core.files import cache_dir
from vit_jax.core.screen import Screen
from vit_jax.data import files
from vit_jax.data.ops import table as ops
from vit_jax.data.pipeline import HostBatch, eval_batches
from vit_jax.data.reader import encoded
from vit_jax.data.source import Source, digest
from vit_jax.learning.cached_set import CachedSet, Decoded
from vit_jax.learning.losses import Batch
from vit_jax.parallel.mesh import BATCH_AXES
from vit_jax.run.memory import device_memory
from vit_jax.run.parts.examples import SplitOfRun
from vit_jax.run.parts.preprocessing import image_size

# A set that takes more than this of a device's memory is divided between the devices; a smaller one
# is on each of them, which saves an exchange in each step.
REPLICATED_SHARE = 1 / 16

_FORMAT = 4  # raised whenever the same source would be decoded to other arrays
_BATCH = 256
_TENSORFLOWS = ("tensorflow", "tensorflow-cpu")

Progress = Callable[[int, int], None]  # examples done, and their total


class CachedBytes(NamedTuple):
    """The bytes of a cached set on each device, and whether it is divided between them."""

    on_device: int
    is_divided: bool


class DeviceCache:
    """A split whose images are kept on the devices."""

    def __init__(self, c: InputConfig, split: SplitOfRun) -> None:
        self._c, self._split, self._source = c, split, split.source
        self._ops = split.ops()
        self._kept = self._ops.before_random()  # the ops whose result is kept

    def check(self, mesh: Mesh) -> CachedBytes:
        """Memory that it takes on each device. Raises UserError if its ops cannot run there."""
        with naming(f"{self._split.section}.preprocess", repr(self._split.preprocess)):
            self._ops.on_device()
            size = self.image_size()
            self._ops.on_device(size)
        return cached_bytes(
            self._source.num_examples,
            size,
            mesh,
            device_memory(mesh.local_devices[0]),
            max_labels=self._source.max_labels,
            weighted=self._source.weighted,
        )

    def load(self, layout: Batch) -> CachedSet:
        """The split on the devices, from its file if it is there, else decoded.

        Args:
          layout: shapes and shardings of its batches.

        Raises:
          UserError: bad data.
        """
        sharding = layout["weight"].sharding
        assert isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh)
        is_divided = self.check(sharding.mesh).is_divided
        return CachedSet(self._decoded(), self._ops.on_device(), layout, is_divided=is_divided)

    def _decoded(self) -> Decoded:
        with contextlib.suppress(*files.NPZ_FAULTS):  # damaged: made again
            stored = _read(self.file())
            if not stored.faults or self._c.on_bad_image != "fail":
                return stored
        screen = Screen(quiet=jax.process_index() > 0)
        made = self.decode(functools.partial(screen.bar, f"decoding {self._split.where}"))
        with contextlib.suppress(OSError):  # it is only a short cut
            self.write(made)
        return made

    def decode(self, progress: Progress) -> Decoded:
        """Decodes all images. UserError for bad data."""
        size = self.check_images()
        with eval_batches(
            self._source,
            self._kept.with_size(size),
            batch_size=min(_BATCH, self._source.num_examples),
            on_bad_image=self._c.on_bad_image,
            max_image_pixels=self._c.max_image_pixels,
            threads=self._c.threads,
        ) as batches:
            return collect(self._source, size, batches, batches.bad_image, progress)

    def file(self) -> Path:
        """The file of the decoded set.

        Another one for other content, other ops, other labels, and another version of what decodes.
        """
        source = self._source
        images = [source.fingerprint, source.stamp(), str(self._kept), self._c.max_image_pixels]
        about = [*images, source.max_labels, source.weighted, _FORMAT, _decoder()]
        return cache_dir() / "decoded" / f"{digest(json.dumps(about))[:32]}.npz"

    def write(self, decoded: Decoded) -> None:
        """Writes its file at once or not at all. OSError if it cannot."""
        files.write_npz(self.file(), **decoded.arrays, faults=json.dumps(decoded.faults))

    def image_size(self) -> tuple[int, int]:
        """(height, width) of the images.

        Where the ops do not say it, that of the first good image: all must have it.

        Raises:
          UserError: the images may have several sizes.
        """
        if self._kept.output_size is not None:
            return self._kept.output_size
        sizes = self._header_sizes() if str(self._kept) == "decode" else iter(())
        if (first := next(sizes, None)) is not None:
            return first[1]
        raise UserError(
            "input.cache=device needs one size: put resize(64) before the first random op."
        )

    def check_images(self) -> tuple[int, int]:
        """The `image_size`; where the ops do not give it, all headers are read.

        Raises:
          UserError: an image has another size than the first.
        """
        expected = self.image_size()
        for index, size in self._header_sizes() if self._kept.output_size is None else ():
            if size != expected:
                raise UserError(
                    f"{self._source.describe(index)} has {size[0]} x {size[1]} pixels, others "
                    f"{expected[0]} x {expected[1]}: input.cache=device keeps images of one size. "
                    f"Put resize({min(expected)}) behind decode."
                )
        return expected

    def _header_sizes(self) -> Iterator[tuple[int, tuple[int, int]]]:
        """(index, (height, width)) of each image whose header is good."""
        for start in range(0, self._source.num_examples, _BATCH):
            indices = np.arange(start, min(start + _BATCH, self._source.num_examples))
            for index, example in zip(indices.tolist(), self._source.read(indices), strict=True):
                image = encoded(example, self._c.max_image_pixels)
                if not isinstance(image, str):
                    height, width = image.size
                    yield index, (int(height), int(width))


def check_all(c: InputConfig, splits: Sequence[SplitOfRun], mesh: Mesh, attempt: Attempt) -> int:
    """Bytes of all splits on each device. UserError if they exceed input.cache_bytes."""
    sizes = [attempt(s.where, lambda s=s: DeviceCache(c, s).check(mesh)) for s in splits]

    def total() -> int:
        num_bytes = sum(size.on_device for size in sizes)
        if c.cache_bytes is not None and num_bytes > c.cache_bytes:
            raise UserError(
                f"input.cache=device: images take {num_bytes:,} bytes of each device, more than "
                f"input.cache_bytes={c.cache_bytes:,}."
            )
        return num_bytes

    return attempt("memory", total, after=sizes)


def declared_size(preprocess: str, field: str) -> tuple[int, int]:
    """(height, width) of the kept images, without data; the model's where only files tell theirs.

    UserError for random ops that do not run on devices.
    """
    parsed = ops.parse(preprocess, field=field)
    parsed.on_device()
    return parsed.before_random().output_size or image_size(preprocess, field)


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


def _decoder() -> str:
    """The versions of TensorFlow and Pillow, whose decoders make the pixels."""
    versions = []
    for name in (*_TENSORFLOWS, "pillow"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions.append(importlib.metadata.version(name))
    return " ".join(versions)


def _read(path: Path) -> Decoded:
    """One of files.NPZ_FAULTS if the file is not there or damaged."""
    with np.load(path) as stored:  # zip checks the CRC of its content
        arrays = dict(stored)
    faults = json.loads(str(arrays.pop("faults")))
    return Decoded(arrays, {int(index): fault for index, fault in faults.items()})


def collect(
    source: Source,
    size: tuple[int, int],
    batches: Iterable[HostBatch],
    bad_image: Callable[[int], str],
    progress: Progress = lambda done, total: None,
) -> Decoded:
    """The set of batches as pipeline.Batches has them, of images of `size`.

    They hold every example once, in order. `bad_image(index)`: file and fault of an example that
    has weight 0.
    """
    number, labels = source.num_examples, source.max_labels
    arrays: dict[str, np.ndarray] = {
        "images": np.empty((number, *size, 3), np.uint8),
        "labels": np.empty((number, labels), np.int32),
        "weight": np.empty((number,), np.float32),
    }
    if source.weighted:
        arrays["label_weights"] = np.empty((number, labels), np.float32)
    faults: dict[int, str] = {}
    done = 0
    for batch in batches:
        there = batch["index"] >= 0
        rows = slice(done, done + int(there.sum()))
        for name, array in arrays.items():
            array[rows] = batch["image" if name == "images" else name][there]
        for index in batch["index"][there & (batch["weight"] == 0)].tolist():
            faults[index] = bad_image(index)
        done = rows.stop
        progress(done, number)
    return Decoded(arrays, faults)
