"""Caches: examples in memory, still encoded; record files on a local disk.

Record files are copied for data sets behind a network:

    <folder>/<data set>-<hash of its folder>/<file>

A file is copied under another name and renamed when it is complete; one process copies, others on
the same host wait for it. A copy is good if it has the size of the original.
"""

import concurrent.futures
import errno
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import filelock
import numpy as np

from vit_jax.core.errors import UserError
from vit_jax.core.files import atomic_file, delete_leftovers
from vit_jax.core.screen import format_bytes
from vit_jax.data import files
from vit_jax.data.source import DerivedSource, Example, Source, digest

LIMIT_BYTES = 8 * 2**30  # the default
_OVERHEAD_BYTES = 300  # of Python's objects for an example
_WEIGHT_BYTES = 32  # of a label's weight, likewise
_SAMPLE = 256  # examples whose mean size is taken for all


class InMemory(DerivedSource):
    """Keeps what was read of `source`, so that it is not read again.

    Memory stays below the limit: what does not fit is read each time.
    """

    def __init__(self, source: Source, *, limit_bytes: int) -> None:
        super().__init__(source)
        self._examples: dict[int, Example] = {}
        self._free_bytes = limit_bytes
        self._lock = threading.Lock()

    def read(self, indices: np.ndarray) -> list[Example]:
        """Reads cached examples from memory, and the rest from the source."""
        missing = np.array([i for i in indices.tolist() if i not in self._examples], np.int64)
        read = self.source.read(missing) if len(missing) else []
        new = dict(zip(missing.tolist(), read, strict=True))
        self._keep(new)
        return [new[i] if i in new else self._examples[i] for i in indices.tolist()]

    def _keep(self, new: dict[int, Example]) -> None:
        with self._lock:
            for index, example in new.items():
                if index not in self._examples and self._free_bytes >= _bytes(example):
                    self._free_bytes -= _bytes(example)
                    self._examples[index] = example


def check_fits(source: Source, *, limit_bytes: int) -> None:
    """UserError if the source is larger than the limit, by the mean size of some examples."""
    count = min(_SAMPLE, source.num_examples)
    indices = np.linspace(0, source.num_examples - 1, count).astype(np.int64)
    mean_bytes = np.mean([_bytes(example) for example in source.read(indices)])
    needed_bytes = round(float(mean_bytes) * source.num_examples)
    if needed_bytes > limit_bytes:
        raise UserError(
            f'input.cache="ram": the {source.num_examples:,} examples take about '
            f"{needed_bytes:,} bytes, which is more than the limit of {limit_bytes:,}. Set "
            "input.cache_bytes to more, if the host has as much to spare for each process, or "
            "input.cache=none."
        )


def _bytes(example: Example) -> int:
    return len(example.image) + _OVERHEAD_BYTES + _WEIGHT_BYTES * len(example.weights)


_THREADS = 8  # threads that wait for the network
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class FileCache(NamedTuple):
    """The folder that copies are kept in."""

    folder: Path  # made if it is not there
    limit_bytes: int | None  # the most bytes in it; None: the disk is the limit
    progress: Callable[[int, int], None]  # called with the bytes copied so far, and all to copy


def copies(
    cache: FileCache, name: str, paths: Sequence[str], sizes_bytes: Sequence[int]
) -> list[str]:
    """The local paths of `paths`, which are copied if necessary. All of them are in one folder.

    `name` is the name of the data set. UserError if there is no room, or if copying fails.
    """
    home, _, _ = paths[0].rpartition("/")
    folder = cache.folder / f"{name}-{digest(home)[:16]}"
    targets = [folder / path.rpartition("/")[2] for path in paths]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(folder / ".lock"):
            delete_leftovers(folder)
            missing = [
                (path, target, size)
                for path, target, size in zip(paths, targets, sizes_bytes, strict=True)
                if files.sizes([target]) != [size]
            ]
            if missing:
                _check_room(cache, sum(size for _, _, size in missing))
                _copy_all(cache, missing)
    except OSError as error:
        why = "its disk is full" if error.errno in _NO_ROOM else error.strerror or str(error)
        raise UserError(
            f"input.cache={cache.folder} cannot be written: {why}. Give another folder, or "
            "input.cache=none; what has been copied stays and is used by the next start."
        ) from error
    return [str(target) for target in targets]


def _check_room(cache: FileCache, needed_bytes: int) -> None:
    there = sum(path.stat().st_size for path in cache.folder.rglob("*") if path.is_file())
    if cache.limit_bytes is not None and there + needed_bytes > cache.limit_bytes:
        raise UserError(
            f"input.cache={cache.folder} has {there:,} bytes, and {needed_bytes:,} more are to be "
            f"copied there: more than input.cache_bytes={cache.limit_bytes:,}. Raise that, or "
            "delete data sets there that are no longer needed."
        )
    free = shutil.disk_usage(cache.folder).free
    if needed_bytes > free:
        raise UserError(
            f"input.cache={cache.folder}: {format_bytes(needed_bytes)} are to be copied there, but "
            f"its disk has {format_bytes(free)} left. Give another folder, or make room."
        )


def _copy_all(cache: FileCache, missing: Sequence[tuple[str, Path, int]]) -> None:
    total_bytes = sum(size for _, _, size in missing)
    done_bytes, lock = 0, threading.Lock()

    def on_bytes(count: int) -> None:
        nonlocal done_bytes
        with lock:
            done_bytes += count
            cache.progress(min(done_bytes, total_bytes), total_bytes)

    def copy(job: tuple[str, Path, int]) -> None:
        path, target, size = job
        with atomic_file(target) as part:
            files.copy(path, part, on_bytes)
            if part.stat().st_size != size:
                raise UserError(
                    f"{path} had {size:,} bytes, but {part.stat().st_size:,} were copied: it has "
                    "changed. Start the same command again."
                )

    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(copy, missing))
