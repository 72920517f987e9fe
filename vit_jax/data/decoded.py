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
from collections.abc import Callable, Iterable
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


def load_or_decode(
    source: Source,
    preprocess: Preprocess,
    *,
    on_bad_image: str,
    max_image_pixels: int,
    threads: int,
    progress: Callable[[int, int], None],
) -> Decoded:
    """The set that `preprocess`, without random ops, makes of a source; from its file if there.

    UserError for bad data.
    """
    path = file(source, preprocess, max_image_pixels=max_image_pixels)
    stored = None
    with contextlib.suppress(*files.NPZ_FAULTS):  # damaged: made again
        stored = read(path)
    if stored is not None:
        if stored.faults and on_bad_image == "fail":
            raise UserError(
                f"{next(iter(stored.faults.values()))}: this is a bad image. Replace it, or set "
                'input.on_bad_image="skip" to give such images weight 0.'
            )
        return stored
    made = decode(
        source,
        preprocess,
        on_bad_image=on_bad_image,
        max_image_pixels=max_image_pixels,
        threads=threads,
        progress=progress,
    )
    with contextlib.suppress(OSError):  # it is only a short cut
        write(path, made)
    return made


def file(source: Source, preprocess: Preprocess, *, max_image_pixels: int) -> Path:
    """The file of a set.

    Another one for other content, other ops, other labels, and another version of what decodes.
    """
    images = [source.fingerprint, source.stamp(), str(preprocess), max_image_pixels]
    about = [*images, source.max_labels, source.weighted, _FORMAT, _decoder()]
    return cache_dir() / "decoded" / f"{digest(json.dumps(about))[:32]}.npz"


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


def check_one_size(
    source: Source, preprocess: Preprocess, *, max_image_pixels: int
) -> tuple[int, int]:
    """The `image_size` of a source; where the ops do not give it, all headers are read.

    Raises:
      UserError: an image has another size than the first.
    """
    expected = image_size(source, preprocess, max_image_pixels=max_image_pixels)
    if preprocess.output_size is not None:
        return expected
    for start in range(0, source.num_examples, _BATCH):
        indices = np.arange(start, min(start + _BATCH, source.num_examples))
        for index, example in zip(indices, source.read(indices), strict=True):
            image = encoded(example, max_image_pixels)
            if not isinstance(image, str) and tuple(image.size) != expected:
                height, width = image.size
                raise UserError(
                    f"{source.describe(int(index))} has {height} x {width} pixels, the first image "
                    f"{expected[0]} x {expected[1]}: input.cache=device keeps images of one size. "
                    f"Put resize({min(expected)}) behind decode."
                )
    return expected


def decode(
    source: Source,
    preprocess: Preprocess,
    *,
    on_bad_image: str,
    max_image_pixels: int,
    threads: int,
    progress: Callable[[int, int], None],
) -> Decoded:
    """Decodes all images; arguments and errors as in `load_or_decode`."""
    size = check_one_size(source, preprocess, max_image_pixels=max_image_pixels)
    with eval_batches(
        source,
        preprocess.with_size(size),
        batch_size=min(_BATCH, source.num_examples),
        on_bad_image=on_bad_image,
        max_image_pixels=max_image_pixels,
        threads=threads,
    ) as batches:
        return collect(source, size, batches, bad_image=batches.bad_image, progress=progress)


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
