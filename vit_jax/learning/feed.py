"""The feed of batches to the devices: fetched and copied ahead, in a separate thread."""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from vit_jax.core import waiting
from vit_jax.core.errors import UserError
from vit_jax.learning.losses import Batch

SKIPPED_IMAGES = "input/skipped_images"  # the metric
AHEAD = 2  # batches on the devices before they are requested
CLOSING_SECS = 10  # time for reads in progress; after it they count as hanging
MAX_SHOWN = 5  # files waited for, in a message


class BadImages:
    """Bad images that were skipped, each once: its file and its fault."""

    def __init__(self) -> None:
        self.files: list[str] = []  # in the order in which they were first read
        self._met: set[int] = set()
        self._told = 0

    def first_met(self, indices: list[int]) -> list[int]:
        """The indices among these examples that were not met before."""
        new = [index for index in dict.fromkeys(indices) if index not in self._met]
        self._met.update(new)
        return new

    def untold(self) -> list[str]:
        """The files added since the last call."""
        told, self._told = self._told, len(self.files)
        return self.files[told:]


@dataclasses.dataclass
class SkippedImages:
    """Counts skipped images over all hosts and all starts of the run."""

    files: BadImages  # this host's; the first is named when there are too many
    logged: Sequence[tuple[int, float]]  # (step, images skipped up to it) of the starts before
    step: int
    batch_size: int
    num_examples: int
    max_fraction: float  # of an epoch; UserError when more are skipped

    def __post_init__(self) -> None:
        logged = [(0, 0.0), *self.logged]
        self._total = self._written = logged[-1][1]
        self._epoch = self.step * self.batch_size // self.num_examples
        before_epoch = -(-self._epoch * self.num_examples // self.batch_size)
        # From the first row on, lest images of the epoch before be held against this one.
        at_first = next((total for at, total in logged if at >= before_epoch), self._total)
        self._in_epoch = int(self._total - at_first)
        # Counts of the steps since the last `commit`, on the devices.
        self.uncommitted: list[Any] = []

    def add(self, scalars: dict[str, Any]) -> None:
        """Adds a step's count without waiting; a step whose batch is left out skips no image."""
        self.uncommitted.append(scalars.get("skipped_images", 0))

    def commit(self, counts: Sequence[Any]) -> dict[str, float]:
        """Adds the values of `uncommitted` and empties it; returns `row`, or {} if already written.

        Raises:
          UserError: all images of a batch were bad, or too many of an epoch.
        """
        self.uncommitted = []
        for count in map(int, counts):
            epoch = self.step * self.batch_size // self.num_examples
            self._in_epoch = count + (self._in_epoch if epoch == self._epoch else 0)
            self._epoch, self.step = epoch, self.step + 1
            self._total += count
            if count == self.batch_size:
                raise UserError(
                    f"All {count:,} images of step {self.step:,} are bad. {self._examples()}"
                )
            # Which images of a batch were bad is unknown: they may belong to the next epoch.
            next_epochs = max(0, self.step * self.batch_size - (epoch + 1) * self.num_examples)
            if self._in_epoch > self.max_fraction * self.num_examples + next_epochs:
                raise UserError(
                    f"{self._in_epoch:,} bad images in epoch {epoch + 1:,} up to step "
                    f"{self.step:,}, more than input.max_bad_fraction={self.max_fraction:g}. "
                    f"{self._examples()}"
                )

        return {} if self._total == self._written else self.row()

    def row(self) -> dict[str, float]:
        """The count for metrics.jsonl, from which a later start continues."""
        self._written = self._total
        return {SKIPPED_IMAGES: float(self._total)}

    def _examples(self) -> str:
        return f"The first: {self.files.files[0]}. " if self.files.files else ""


class FedBatch(NamedTuple):
    """A batch on the devices, and the images of this host that were skipped in it."""

    batch: dict[str, jax.Array]
    skipped: int  # how many
    bad_images: list[str]  # the ones met for the first time: the file and its fault


def local_rows(layout: jax.ShapeDtypeStruct) -> np.ndarray:
    """Rows (first axis) of a global array on this process's devices; int64, ascending."""
    assert layout.sharding is not None
    parts = layout.sharding.addressable_devices_indices_map(layout.shape).values()
    ranges = {index[0].indices(layout.shape[0]) for index in parts if index}
    return np.unique(np.concatenate([np.arange(*each) for each in ranges]))


class Feed:
    """Iterates over a host's batches as global arrays; a context manager.

    Args:
      batches: yields dictionaries of NumPy arrays, this host's part; closed with the feed.
      layout: jax.ShapeDtypeStruct with sharding for each array that goes to the devices.
      timeout_secs: UserError if a batch takes longer; it names the files being read.
      bad_images: collects the bad images; default: a new, empty one.
      finish: makes a batch of these arrays on the devices; default: they are the batch. It is
        called where the feed is iterated over, so that all processes do so in the same order.
    """

    def __init__(
        self,
        batches: Any,
        layout: dict[str, jax.ShapeDtypeStruct],
        *,
        timeout_secs: float,
        bad_images: BadImages | None = None,
        finish: Callable[[dict[str, jax.Array]], dict[str, jax.Array]] = lambda batch: batch,
    ):
        self._batches, self._layout, self._timeout_secs = batches, layout, timeout_secs
        self._rows = {name: local_rows(array) for name, array in layout.items()}
        self._queue: queue.Queue[FedBatch | BaseException | None] = queue.Queue(maxsize=AHEAD)
        self._closed = threading.Event()
        self.bad_images = BadImages() if bad_images is None else bad_images
        self._finish = finish
        self.wait_secs = 0.0  # how long the caller has waited for batches so far
        self.skipped_images = 0  # of this host, in the batches handed out
        # The first step whose batch could not be read, and why.
        self.unread: tuple[int, UserError] | None = None
        self._thread = threading.Thread(target=self._fill, name="feed", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[dict[str, jax.Array]]:
        return self

    def __next__(self) -> dict[str, jax.Array]:
        started = time.perf_counter()
        try:
            item = self._queue.get(timeout=self._timeout_secs)
        except queue.Empty as error:
            raise _timed_out(self._timeout_secs) from error
        self.wait_secs += time.perf_counter() - started
        if item is None:
            self._queue.put(None)  # stays at the end, however often it is called
            raise StopIteration
        if isinstance(item, BaseException):
            self._queue.put(item)
            raise item
        self.skipped_images += item.skipped
        self.bad_images.files += item.bad_images
        return self._finish(item.batch)

    def batch_of(self, step: int, *, tell: Callable[[str], object]) -> Batch:
        """The next batch, of this step; of one that cannot be read `tell` gets the reason."""
        try:
            return next(self)
        except UserError as error:
            if self.unread is None:
                self.unread = (step, error)
                tell(str(error))
            return self.unread_batch()

    def is_unread(self, step: int) -> bool:
        """Returns whether any process could not read its part of this step's batch."""
        first = np.iinfo(np.int32).max if self.unread is None else self.unread[0]
        return bool(multihost_utils.process_allgather(np.int32(first)).min() <= step)

    def raise_unread(self) -> None:
        """Raises the error by which this process could not read a batch, if there was one."""
        if self.unread is not None:
            raise self.unread[1]

    def unread_batch(self) -> Batch:
        """A batch in place of one that cannot be read; its weights are NaN, and so is its loss."""
        zeros = {
            k: np.zeros((len(self._rows[k]), *x.shape[1:]), x.dtype)
            for k, x in self._layout.items()
        }
        batch = self._finish({k: self._place(x, k) for k, x in zeros.items()})
        return batch | {"weight": jnp.full_like(batch["weight"], jnp.nan)}

    def _fill(self) -> None:
        try:
            for batch in self._batches:
                bad = batch["index"][(batch["weight"] == 0) & (batch["index"] >= 0)].tolist()
                new = [self._batches.bad_image(i) for i in self.bad_images.first_met(bad)]
                placed = {k: self._place(batch[k], k) for k in self._layout}
                self._put(FedBatch(placed, len(bad), new))
                if self._closed.is_set():
                    return
            self._put(None)
        except BaseException as error:
            self._put(error)
        finally:
            self._batches.close()  # here, since it waits for reads in progress

    def _place(self, host_array: np.ndarray, name: str) -> jax.Array:
        layout = self._layout[name]
        assert host_array.dtype == layout.dtype, (name, host_array.dtype, layout.dtype)
        rows = self._rows[name]

        def part(index: tuple[slice, ...] | None) -> np.ndarray:
            assert index is not None
            first, stop, _ = index[0].indices(layout.shape[0])
            start = int(np.searchsorted(rows, first))
            return host_array[start : start + stop - first]

        return jax.make_array_from_callback(layout.shape, layout.sharding, part)

    def _put(self, item: FedBatch | BaseException | None) -> None:
        while not self._closed.is_set():
            with contextlib.suppress(queue.Full):
                self._queue.put(item, timeout=0.1)
                return

    def close(self) -> None:
        """Ends the thread and closes the batches; may be called twice.

        If a read hangs they are abandoned: see core/waiting.py.
        """
        self._closed.set()
        self._thread.join(CLOSING_SECS)
        if self._thread.is_alive():
            waiting.abandon_thread(self._thread)

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _timed_out(timeout_secs: float) -> UserError:
    """The error for a batch that takes too long; names the host and the files."""
    shown = [f"\n  {wait.what}, for {wait.secs:.0f} s" for wait in waiting.waits()[:MAX_SHOWN]]
    reading = f"It reads:{''.join(shown)}\n" if shown else "It reads no file at this moment. "
    return UserError(
        f"{socket.gethostname()} (process {jax.process_index()} of {jax.process_count()}) got no "
        f"batch of data for {timeout_secs:g} s (input.timeout_secs). {reading}"
        "See whether that disk or network hangs, then start the same command again; if it is only "
        "slow, raise input.timeout_secs, or input.threads, which read at the same time."
    )
