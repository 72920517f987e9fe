"""Decoded sets: all images of a small source as one array, kept in a folder and read from there.

A set is made once, by the ops of the host pipeline (which takes TensorFlow), up to the first random
one. Later starts read it, as often as they like and without TensorFlow. Its folder:

    images.npy         uint8   [n, H, W, 3]  black where the image is bad
    labels.npy         int32   [n, K]        -1 behind the last one
    weight.npy         float32 [n]           0 for a bad image, else 1
    label_weights.npy  float32 [n, K]        if the source is weighted
    set.json           {"faults": {"<example>": "<file>: <fault>"}, of the bad images,
                        "checksums": {"<name>.npy": CRC-32C of the file}}
"""

from __future__ import annotations

import importlib.metadata
import itertools
import json
import math
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c
import numpy as np

from vit_jax.core.errors import UserError
from vit_jax.core.files import atomic_folder, cache_dir
from vit_jax.core.screen import format_bytes
from vit_jax.data.ops.table import DeviceOps, Preprocess
from vit_jax.data.order import streams
from vit_jax.data.order.streams import Choose, Stream
from vit_jax.data.pipeline import NO_EXAMPLE, HostBatch, eval_batches
from vit_jax.data.reader import encoded
from vit_jax.data.source import DerivedSource, Example, Source, digest

_FORMAT = 2  # raised whenever the same source would be decoded to other arrays
_BATCH = 256
_ABOUT = "set.json"
_CHUNK_BYTES = 2**24
_NEEDED = ("images", "labels", "weight")
_ARRAYS = (*_NEEDED, "label_weights")
_TENSORFLOWS = ("tensorflow", "tensorflow-cpu")


class Decoded(NamedTuple):
    """A decoded set; the arrays are read from the disk where they are used."""

    arrays: dict[str, np.ndarray]  # "images", "labels", "weight" and perhaps "label_weights"
    faults: dict[int, str]  # of the bad images, by example

    @property
    def num_examples(self) -> int:
        """The number of examples, n."""
        return len(self.arrays["weight"])


def folder(source: Source, preprocess: str, *, max_image_pixels: int) -> Path:
    """The folder of the set that the ops `preprocess`, none of them random, make of a source.

    Another one for other content, other ops, other labels, and another version of what decodes.
    """
    images = [source.fingerprint, source.stamp(), preprocess, max_image_pixels]
    about = [*images, source.max_labels, source.weighted, _FORMAT, _decoder()]
    return home() / digest(json.dumps(about))[:32]


def home() -> Path:
    """The folder of all sets."""
    return cache_dir() / "decoded"


def _decoder() -> str:
    """The version of TensorFlow, whose decoders make the pixels."""
    for name in _TENSORFLOWS:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


def load(path: Path) -> Decoded:
    """Reads a folder that `write` has made. OSError or ValueError if it is not complete."""
    about = _about(path)
    there = [name for name in _ARRAYS if f"{name}.npy" in about["checksums"]]
    try:
        arrays = {name: np.load(path / f"{name}.npy", mmap_mode="r") for name in there}
    except EOFError as error:
        raise ValueError(f"{path} has an empty file") from error
    return Decoded(arrays, {int(index): fault for index, fault in about["faults"].items()})


def verify(path: Path) -> None:
    """Reads all of a folder's files. OSError or ValueError if they are not what was written."""
    load(path)
    for name, checksum in _about(path)["checksums"].items():
        if _checksum(path / name) != checksum:
            raise ValueError(f"{path / name} has changed")


def _about(path: Path) -> dict[str, dict[str, Any]]:
    about = json.loads((path / _ABOUT).read_text())
    if not (isinstance(about, dict) and about.keys() == {"faults", "checksums"}):
        raise ValueError(f"{path / _ABOUT} is damaged")
    if not all(isinstance(part, dict) for part in about.values()):
        raise ValueError(f"{path / _ABOUT} is damaged")
    if not {f"{name}.npy" for name in _NEEDED} <= about["checksums"].keys():
        raise ValueError(f"{path} lacks a file")
    return about


def _checksum(file: Path) -> int:
    found = google_crc32c.Checksum()
    with file.open("rb") as opened:
        while chunk := opened.read(_CHUNK_BYTES):
            found.update(chunk)
    return int.from_bytes(found.digest(), "big")


def image_size(source: Source, preprocess: Preprocess, *, max_image_pixels: int) -> tuple[int, int]:
    """(height, width) of the images that `preprocess`, without random ops, makes of a source.

    Where the ops do not say it, that of the first good image among a few: all of them must have it.
    UserError if the images may have several sizes.
    """
    if preprocess.output_size is not None:
        return preprocess.output_size
    if str(preprocess) == "decode":
        some = np.arange(min(_BATCH, source.num_examples))
        for example in source.read(some):
            image = encoded(example, max_image_pixels)
            if not isinstance(image, str):
                return image.size
    raise UserError(
        f"input.cache=device keeps images of one size, but {preprocess} gives each its own: put "
        "an op such as resize(64) or central_crop(64) in front of the first random op."
    )


class _OfOneSize(DerivedSource):
    """A source whose images must have this (height, width)."""

    def __init__(self, source: Source, size: tuple[int, int], max_image_pixels: int) -> None:
        super().__init__(source)
        self._size, self._max_image_pixels = size, max_image_pixels

    def read(self, indices: np.ndarray) -> list[Example]:
        """Examples of `source`. UserError for an image of another size."""
        examples = self.source.read(indices)
        for index, example in zip(indices, examples, strict=True):
            image = encoded(example, self._max_image_pixels)
            if not isinstance(image, str) and tuple(image.size) != self._size:
                height, width = image.size
                raise UserError(
                    f"{self.describe(int(index))} has {height} x {width} pixels, the first image "
                    f"{self._size[0]} x {self._size[1]}: input.cache=device keeps images of one "
                    f"size. Put resize({min(self._size)}) behind decode."
                )
        return examples


def of_one_size(source: Source, preprocess: Preprocess, *, max_image_pixels: int) -> Source:
    """The source, whose `read` refuses images that do not make one size with the others."""
    if preprocess.output_size is not None:
        return source
    size = image_size(source, preprocess, max_image_pixels=max_image_pixels)
    return _OfOneSize(source, size, max_image_pixels)


def check_one_size(source: Source, preprocess: Preprocess, *, max_image_pixels: int) -> None:
    """UserError if an image would not make one size with the others; reads all of them."""
    checked = of_one_size(source, preprocess, max_image_pixels=max_image_pixels)
    if checked is not source:
        for start in range(0, source.num_examples, _BATCH):
            checked.read(np.arange(start, min(start + _BATCH, source.num_examples)))


def decode(
    source: Source,
    preprocess: Preprocess,
    path: Path,
    *,
    on_bad_image: str,
    max_image_pixels: int,
    threads: int,
    progress: Callable[[int, int], None],
) -> None:
    """Makes the folder `path`; nothing is left of it after an error.

    `preprocess` must not have random ops. UserError for bad data, and where there is no room.
    """
    size = image_size(source, preprocess, max_image_pixels=max_image_pixels)
    source = of_one_size(source, preprocess, max_image_pixels=max_image_pixels)
    with eval_batches(
        source,
        preprocess.with_size(size),
        batch_size=min(_BATCH, source.num_examples),
        on_bad_image=on_bad_image,
        max_image_pixels=max_image_pixels,
        threads=threads,
    ) as batches:
        write(path, source, size, batches, bad_image=batches.bad_image, progress=progress)


def write(
    path: Path,
    source: Source,
    size: tuple[int, int],
    batches: Iterable[HostBatch],
    *,
    bad_image: Callable[[int], str],
    progress: Callable[[int, int], None],
) -> None:
    """Makes the folder `path` of batches as pipeline.Batches has them, of images of `size`.

    They hold every example once, in order. `bad_image(index)`: file and fault of an example that
    has weight 0. UserError where there is no room.
    """
    number, labels = source.num_examples, source.max_labels
    shapes: dict[str, tuple[tuple[int, ...], type]] = {
        "images": ((number, *size, 3), np.uint8),
        "labels": ((number, labels), np.int32),
        "weight": ((number,), np.float32),
    }
    if source.weighted:
        shapes["label_weights"] = ((number, labels), np.float32)
    _check_room(path.parent, sum(math.prod(s) * np.dtype(d).itemsize for s, d in shapes.values()))
    with atomic_folder(path) as part:
        arrays = {
            name: np.lib.format.open_memmap(part / f"{name}.npy", "w+", dtype, shape)
            for name, (shape, dtype) in shapes.items()
        }
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
        for array in arrays.values():
            array.flush()
        checksums = {f"{name}.npy": _checksum(part / f"{name}.npy") for name in arrays}
        (part / _ABOUT).write_text(json.dumps({"faults": faults, "checksums": checksums}))


def _check_room(parent: Path, needed_bytes: int) -> None:
    parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(parent).free
    if needed_bytes > free:
        raise UserError(
            f"input.cache=device: the decoded images take {format_bytes(needed_bytes)} in {parent},"
            f" whose disk has {format_bytes(free)} left. Make room, or set XDG_CACHE_HOME to a "
            "folder on another disk."
        )


class Slots:
    """Iterates over a host's batches like pipeline.Batches, but they name examples, without pixels.

    A batch of b slots is a dictionary of arrays:

        example  int32   [b]             index of the example in the set; -1 for padding
        draws    float32 [b, num_draws]  the numbers of its random ops
        index    int64   [b]             as `example`
        weight   float32 [b]             1; 0 for a bad image, and for padding
    """

    def __init__(
        self,
        decoded: Decoded,
        ops: DeviceOps,
        choose: Choose,
        *,
        num_rows: int,
        batches: Iterable[int],
    ) -> None:
        """`choose` gives the examples of slots, `num_rows` a batch; `batches` are their numbers."""
        self._decoded, self._ops, self._choose = decoded, ops, choose
        self._num_rows, self._batches = num_rows, batches

    def __iter__(self) -> Iterator[HostBatch]:
        weights = np.asarray(self._decoded.arrays["weight"])
        for batch in self._batches:
            slots = np.arange(batch * self._num_rows, (batch + 1) * self._num_rows)
            indices, seeds = self._choose(slots)
            indices = np.where(indices < self._decoded.num_examples, indices, NO_EXAMPLE)
            yield {
                "example": indices.astype(np.int32),
                "draws": self._ops.draw(seeds),
                "index": indices,
                "weight": np.where(indices < 0, np.float32(0), weights[indices]),
            }

    def bad_image(self, index: int) -> str:
        """The file and the fault of a bad image."""
        return self._decoded.faults[index]

    def close(self) -> None:
        """Nothing is open."""


def train_slots(
    decoded: Decoded,
    ops: DeviceOps,
    *,
    stream: Stream,
    batch_size: int,
    seed: int,
    start_step: int,
    rows: np.ndarray,
) -> Slots:
    """The slots that pipeline.train_batches would fill; arguments as there."""
    choose = streams.train_slots(stream, rows, batch_size, seed)
    return Slots(decoded, ops, choose, num_rows=len(rows), batches=itertools.count(start_step))


def eval_slots(decoded: Decoded, ops: DeviceOps, *, batch_size: int, rows: np.ndarray) -> Slots:
    """The slots that pipeline.eval_batches would fill; arguments as there."""
    _, num_batches = streams.eval_counts(decoded.num_examples, rows, batch_size)
    choose = streams.eval_slots(rows, batch_size)
    return Slots(decoded, ops, choose, num_rows=len(rows), batches=range(num_batches))
