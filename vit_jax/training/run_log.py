"""The log of a run: metrics.jsonl, TensorBoard's files, which take no TensorFlow, and traces."""

from __future__ import annotations

import contextlib
import io
import os
import socket
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import jax
import numpy as np
from etils import epath
from PIL import Image

from vit_jax.core.errors import UserError
from vit_jax.core.files import atomic_file
from vit_jax.store.metrics_file import MetricsFile
from vit_jax.store.workdir import PICTURES
from vit_jax.training.histograms import Distributions, Histogram, histogram

_NONE: Mapping[str, bytes] = {}
_FLUSH_SECS = 30  # of TensorBoard's file, which a bucket takes anew each time


class Logger(Protocol):
    """A destination of a run's numbers beside metrics.jsonl, in process 0."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Writes one row; a resumed run writes the rows after its checkpoint again."""

    def write_histograms(self, step: int, histograms: Mapping[str, Histogram]) -> None:
        """Writes histograms by name; by default leaves them out."""

    def write_pictures(self, step: int, pictures: Mapping[str, bytes]) -> None:
        """Writes PNG files by name; by default leaves them out."""

    def close(self, error: BaseException | None) -> None:
        """Ends the log, with what the run ended with; by default does nothing."""


class RunLog:
    """Writes rows of numbers to metrics.jsonl and to `writers`; a context manager.

    Args:
      workdir: where metrics.jsonl and the profiler's files go. Only process 0 writes rows.
      writers: further destinations; closed with the log.
      start_step: rows and pictures after it, from an earlier start that went further, are deleted.
      profile: (first step, number of steps) to trace for TensorBoard's profiler, or None.
    """

    def __init__(
        self,
        workdir: epath.Path,
        *,
        writers: Sequence[Logger],
        start_step: int,
        profile: tuple[int, int] | None,
    ):
        self._file: MetricsFile | None = None
        self._writers = writers
        if jax.process_index() == 0:
            self._file = MetricsFile(workdir / "metrics.jsonl")
            self._file.truncate_after(start_step)
            for file in (workdir / PICTURES).glob("*/*/*.png"):
                if file.stem.isdecimal() and int(file.stem) > start_step:
                    file.unlink()
        self._workdir, self._profile, self._is_tracing = workdir, profile, False

    def after_step(self, step: int) -> None:
        """To be called after each step; starts and stops the profiler, if there is one."""
        if not self._profile:
            return
        first_step, num_steps = self._profile
        if self._is_tracing and step >= first_step + num_steps:
            self._stop_tracing()
        elif step == first_step:
            jax.profiler.start_trace(str(self._workdir))
            self._is_tracing = True

    def _stop_tracing(self) -> None:
        jax.profiler.stop_trace()
        self._is_tracing = False

    def write(
        self, step: int, values: Mapping[str, float], pictures: Mapping[str, bytes] = _NONE
    ) -> None:
        """Writes one row, after the pictures of its step."""
        self._write_pictures(step, pictures)
        if self._file:
            self._file.write(step, values)
        for writer in self._writers:
            writer.write(step, values)

    def write_distributions(self, step: int, distributions: Distributions) -> None:
        """Writes a row of their scalars, and histograms, but these not to metrics.jsonl."""
        self.write(step, {name: float(x) for name, x in distributions.scalars.items()})
        histograms = {name: histogram(counts) for name, counts in distributions.counts.items()}
        for writer in self._writers:
            writer.write_histograms(step, histograms)

    def _write_pictures(self, step: int, pictures: Mapping[str, bytes]) -> None:
        """Writes PNG files by name to pictures/NAME/STEP.png, and to the writers.

        UserError if a file cannot be written.
        """
        if not self._file:
            return
        for name, png in pictures.items():
            file = self._workdir / PICTURES / name / f"{step}.png"
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                with atomic_file(file) as temporary:
                    temporary.write_bytes(png)
            except OSError as error:
                raise UserError(
                    f"{file} cannot be written: {error.strerror or error}. Make room, or take the "
                    "evaluation that draws it out of the config."
                ) from error
        for writer in self._writers:
            if pictures:
                writer.write_pictures(step, pictures)

    def row(self, step: int) -> dict[str, float]:
        """All numbers written for `step`; empty if there are none."""
        rows = self._file.rows() if self._file else []
        return {k: v for row in rows if row["step"] == step for k, v in row.items()}

    def last(self, name: str) -> float | None:
        """The newest number of this name; None if there is none yet, or in another process."""
        rows = self._file.rows() if self._file else []
        return next((row[name] for row in reversed(rows) if name in row), None)

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._is_tracing:
            self._stop_tracing()
        for writer in self._writers:
            writer.close(error)


class TensorBoard:
    """Writes an event file into a work directory, in a thread.

    A record of it (as in TFRecord files) is an Event message:
    https://github.com/tensorflow/tensorboard/blob/master/tensorboard/compat/proto/event.proto
    """

    def __init__(self, workdir: epath.Path):
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        now, host = time.time(), socket.gethostname()
        path = workdir / f"events.out.tfevents.{now:.6f}.{host}.{os.getpid()}"
        self._opened = contextlib.ExitStack()
        # At gs:// and the like open() gives a context manager that is not the file.
        self._records = RecordWriter(self._opened.enter_context(path.open("wb")))
        self._flushed = time.monotonic()
        self._thread = ThreadPoolExecutor(1, "tensorboard")
        self._last: Future[None] = self._thread.submit(
            self._append, Event(wall_time=now, file_version="brain.Event:2")
        )

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Writes one row. OSError if an earlier one could not be written."""
        from tensorboard.plugins.scalar import metadata

        kind = metadata.create_summary_metadata("", "")
        arrays = {name: np.asarray(value, np.float32) for name, value in values.items()}
        self._write(step, arrays, dict.fromkeys(values, kind))

    def write_histograms(self, step: int, histograms: Mapping[str, Histogram]) -> None:
        """Writes tensors [K, 3] of left edges, right edges and counts, as TensorBoard requires."""
        from tensorboard.plugins.histogram import metadata

        arrays = {
            name: np.stack([h.edges[:-1], h.edges[1:], h.counts], axis=1)
            for name, h in histograms.items()
        }
        kinds = {name: metadata.create_summary_metadata(name, "") for name in histograms}
        self._write(step, arrays, kinds)

    def write_pictures(self, step: int, pictures: Mapping[str, bytes]) -> None:
        """Writes PNG files: width and height as texts, then the file, as TensorBoard requires."""
        from tensorboard.plugins.image import metadata

        arrays = {}
        for name, png in pictures.items():
            sides = (str(side).encode() for side in Image.open(io.BytesIO(png)).size)
            arrays[name] = np.array([*sides, png], object)
        kinds = {
            name: metadata.create_summary_metadata(name, "", converted_to_tensor=True)
            for name in pictures
        }
        self._write(step, arrays, kinds)

    def _write(self, step: int, arrays: Mapping[str, np.ndarray], kinds: Mapping[str, Any]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.util.tensor_util import make_tensor_proto

        event = Event(wall_time=time.time(), step=step)
        for name, array in arrays.items():
            tensor = make_tensor_proto(array)
            event.summary.value.add(tag=name, tensor=tensor, metadata=kinds[name])
        if self._last.done():
            self._last.result()
        self._last = self._thread.submit(self._append, event)

    def _append(self, event: Any) -> None:
        self._records.write(event.SerializeToString())
        if time.monotonic() - self._flushed > _FLUSH_SECS:
            self._records.flush()
            self._flushed = time.monotonic()

    def close(self, error: BaseException | None) -> None:
        """Writes the remaining rows."""
        self._thread.shutdown()
        self._records.flush()
        self._opened.close()
        if error is None:
            self._last.result()


def write_parameters(workdir: epath.Path, params: Any) -> None:
    """parameters.txt: name, shape, type, size and sharding of every parameter, by clu."""
    from clu import parameter_overview

    if jax.process_index() == 0:
        table = parameter_overview.get_parameter_overview(params, include_stats="sharding")
        file = workdir / "parameters.txt"
        try:
            file.write_text(f"{table}\n")
        except OSError as error:
            raise UserError(
                f"{file} cannot be written: {error.strerror or error}. Delete it, make room, or "
                "give another --workdir."
            ) from error
