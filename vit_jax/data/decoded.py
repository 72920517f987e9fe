"""Decoded sets: all images of a small source as one array, for batches that are made elsewhere.

A set is what the host's ops, up to the first random one, make of the images. It is kept in a file
of numpy.savez in the user's cache folder, so that later starts read it without TensorFlow:

    images         uint8   [n, H, W, 3]  black where the image is bad
    labels         int32   [n, K]        -1 behind the last one
    weight         float32 [n]           0 for a bad image, else 1
    label_weights  float32 [n, K]        if the source is weighted
    faults         a text                JSON, {"<example>": "<file>: <fault>"} of the bad images
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vit_jax.core.errors import UserError
from vit_jax.core.files import cache_dir
from vit_jax.data import files
from vit_jax.data.ops.table import Preprocess
from vit_jax.data.pipeline import HostBatch, eval_batches
from vit_jax.data.reader import encoded
from vit_jax.data.source import Source, digest

_FORMAT = 3  # raised whenever the same source would be decoded to other arrays
_BATCH = 256
_TENSORFLOWS = ("tensorflow", "tensorflow-cpu")


class Decoded(NamedTuple):
    """A decoded set."""

    arrays: dict[str, np.ndarray]  # "images", "labels", "weight" and perhaps "label_weights"
    faults: dict[int, str]  # of the bad images, by example

    @property
    def num_examples(self) -> int:
        """The number of examples, n."""
        return len(self.arrays["weight"])


class Recipe(NamedTuple):
    """The recipe that a decoded set is made by."""

    source: Source
    preprocess: Preprocess
    max_image_pixels: int

    def load_or_decode(
        self, *, on_bad_image: str, threads: int, progress: Callable[[int, int], None]
    ) -> Decoded:
        """The set, from its file if it is there.

        Raises:
          UserError: bad data.
        """
        path = self.file()
        with contextlib.suppress(*files.NPZ_FAULTS):  # damaged: made again
            stored = read(path)
            if not stored.faults or on_bad_image != "fail":
                return stored
        made = self.decode(on_bad_image=on_bad_image, threads=threads, progress=progress)
        with contextlib.suppress(OSError):  # it is only a short cut
            write(path, made)
        return made

    def file(self) -> Path:
        """The file of the set.

        Another one for other content, other ops, other labels, and another version of what decodes.
        """
        source = self.source
        images = [source.fingerprint, source.stamp(), str(self.preprocess), self.max_image_pixels]
        about = [*images, source.max_labels, source.weighted, _FORMAT, _decoder()]
        return cache_dir() / "decoded" / f"{digest(json.dumps(about))[:32]}.npz"

    def image_size(self) -> tuple[int, int]:
        """(height, width) of the images.

        Where the ops do not say it, that of the first good image: all must have it.

        Raises:
          UserError: the images may have several sizes.
        """
        if self.preprocess.output_size is not None:
            return self.preprocess.output_size
        sizes = self._header_sizes() if str(self.preprocess) == "decode" else iter(())
        if (first := next(sizes, None)) is not None:
            return first[1]
        raise UserError(
            "input.cache=device needs one size: put resize(64) before the first random op."
        )

    def check_one_size(self) -> tuple[int, int]:
        """The `image_size`; where the ops do not give it, all headers are read.

        Raises:
          UserError: an image has another size than the first.
        """
        expected = self.image_size()
        for index, size in self._header_sizes() if self.preprocess.output_size is None else ():
            if size != expected:
                raise UserError(
                    f"{self.source.describe(index)} has {size[0]} x {size[1]} pixels, others "
                    f"{expected[0]} x {expected[1]}: input.cache=device keeps images of one size. "
                    f"Put resize({min(expected)}) behind decode."
                )
        return expected

    def _header_sizes(self) -> Iterator[tuple[int, tuple[int, int]]]:
        """(index, (height, width)) of each image whose header is good."""
        for start in range(0, self.source.num_examples, _BATCH):
            indices = np.arange(start, min(start + _BATCH, self.source.num_examples))
            for index, example in zip(indices.tolist(), self.source.read(indices), strict=True):
                image = encoded(example, self.max_image_pixels)
                if not isinstance(image, str):
                    height, width = image.size
                    yield index, (int(height), int(width))

    def decode(
        self, *, on_bad_image: str, threads: int, progress: Callable[[int, int], None]
    ) -> Decoded:
        """Decodes all images; errors as in `load_or_decode`."""
        size = self.check_one_size()
        with eval_batches(
            self.source,
            self.preprocess.with_size(size),
            batch_size=min(_BATCH, self.source.num_examples),
            on_bad_image=on_bad_image,
            max_image_pixels=self.max_image_pixels,
            threads=threads,
        ) as batches:
            bad_image = batches.bad_image
            return collect(self.source, size, batches, bad_image=bad_image, progress=progress)


def _decoder() -> str:
    """The version of TensorFlow, whose decoders make the pixels."""
    for name in _TENSORFLOWS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return ""


def read(path: Path) -> Decoded:
    """Reads what `write` has written. One of files.NPZ_FAULTS if it is not there or damaged."""
    with np.load(path) as stored:  # zip checks the CRC of its content
        arrays = dict(stored)
    faults = json.loads(str(arrays.pop("faults")))
    return Decoded(arrays, {int(index): fault for index, fault in faults.items()})


def write(path: Path, decoded: Decoded) -> None:
    """Writes the file at once or not at all. OSError if it cannot."""
    files.write_npz(path, **decoded.arrays, faults=json.dumps(decoded.faults))


def collect(
    source: Source,
    size: tuple[int, int],
    batches: Iterable[HostBatch],
    *,
    bad_image: Callable[[int], str],
    progress: Callable[[int, int], None],
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
