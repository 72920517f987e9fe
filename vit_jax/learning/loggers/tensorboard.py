"""TensorBoard's files, which take no TensorFlow."""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
import struct
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
from etils import epath
from google.protobuf.message import DecodeError
from PIL import Image
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar import metadata as custom_scalar
from tensorboard.plugins.histogram import metadata as histogram
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.plugins.image import metadata as image
from tensorboard.plugins.scalar import metadata as scalar
from tensorboard.plugins.text import metadata as text
from tensorboard.summary.writer.record_writer import RecordWriter
from tensorboard.util.tensor_util import make_tensor_proto

from vit_jax.core.errors import reading, writing
from vit_jax.store.workdir import flatten, save

if TYPE_CHECKING:
    from vit_jax.learning.histograms import Histogram

_FILES = "events.out.tfevents."
_HEADER, _CHECKSUM_BYTES = struct.Struct("<QI"), 4  # around a record: its length, checksums
_FLUSH_SECS = 30  # of the file, which a bucket takes anew each time
# Charts of the tab "Custom scalars", which shows them in this order; of all evaluations.
_MAIN = {
    "loss": ["train/loss", ".*/loss"],
    "accuracy": ["train/accuracy", ".*/accuracy"],
    "learning rate": ["train/learning_rate"],
    "images per second": ["speed/images_per_second"],
}


class TensorBoard:
    """Writes an event file into a work directory, in a thread.

    A record of it (as in TFRecord files) is an Event message:
    https://github.com/tensorflow/tensorboard/blob/master/tensorboard/compat/proto/event.proto

    Args:
      start_step: rows after it, from an earlier start that went further, are deleted.
      config: nested fields, which are the run's hyperparameters. program: the same as a text.
    """

    def __init__(
        self,
        workdir: epath.Path,
        *,
        start_step: int,
        config: Mapping[str, Any] | None = None,
        program: str = "",
    ):
        for file in workdir.glob(f"{_FILES}*"):
            _truncate_after(file, start_step)
        now, host = time.time(), socket.gethostname()
        path = workdir / f"{_FILES}{now:.6f}.{host}.{os.getpid()}"
        self._workdir, self._opened = workdir, contextlib.ExitStack()
        with writing("--workdir", workdir):
            # At gs:// and the like open() gives a context manager that is not the file.
            self._records = RecordWriter(self._opened.enter_context(path.open("wb")))
        self._flushed = time.monotonic()
        self._thread = ThreadPoolExecutor(1, "tensorboard")
        self._last: Future[None] = self._thread.submit(
            self._append, Event(wall_time=now, file_version="brain.Event:2")
        )
        # A TensorBoard that has read the deleted rows drops those of this step and later ones.
        start = Event(wall_time=now, step=start_step + 1)
        start.session_log.status = SessionLog.START
        self._last = self._thread.submit(self._append, start)
        if config is not None:
            self._write_config(start_step, config, program)

    def _write_config(self, step: int, config: Mapping[str, Any], program: str) -> None:
        fields = {name: json.loads(x) for name, x in flatten(config).items()}
        numbers = {k: x if isinstance(x, int | float) else str(x) for k, x in fields.items()}
        summary = hparams_pb(numbers, trial_id=str(self._workdir))
        event = Event(wall_time=time.time(), step=step, summary=summary)
        self._last = self._thread.submit(self._append, event)
        charts = [
            layout_pb2.Chart(title=title, multiline=layout_pb2.MultilineChartContent(tag=tags))
            for title, tags in _MAIN.items()
        ]
        layout = layout_pb2.Layout(category=[layout_pb2.Category(title="Main", chart=charts)])
        arrays = {
            "config": f"```python\n{program}\n```".encode(),
            custom_scalar.CONFIG_SUMMARY_TAG: layout.SerializeToString(),
        }
        kinds = [text.create_summary_metadata("", ""), custom_scalar.create_summary_metadata()]
        texts = {name: np.array(x, object) for name, x in arrays.items()}
        self._write(step, texts, dict(zip(arrays, kinds, strict=True)))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Writes one row. UserError if an earlier one could not be written."""
        kind = scalar.create_summary_metadata("", "")
        arrays = {name: np.asarray(value, np.float32) for name, value in values.items()}
        self._write(step, arrays, dict.fromkeys(values, kind))

    def write_histograms(self, step: int, histograms: Mapping[str, Histogram]) -> None:
        """Writes tensors [K, 3] of left edges, right edges and counts, as TensorBoard requires."""
        arrays = {
            name: np.stack([h.edges[:-1], h.edges[1:], h.counts], axis=1)
            for name, h in histograms.items()
        }
        kinds = {name: histogram.create_summary_metadata(name, "") for name in histograms}
        self._write(step, arrays, kinds)

    def write_pictures(self, step: int, pictures: Mapping[str, bytes]) -> None:
        """Writes PNG files: width and height as texts, then the file, as TensorBoard requires."""
        arrays = {}
        for name, png in pictures.items():
            sides = (str(side).encode() for side in Image.open(io.BytesIO(png)).size)
            arrays[name] = np.array([*sides, png], object)
        kinds = {
            name: image.create_summary_metadata(name, "", converted_to_tensor=True)
            for name in pictures
        }
        self._write(step, arrays, kinds)

    def _write(self, step: int, arrays: Mapping[str, np.ndarray], kinds: Mapping[str, Any]) -> None:
        event = Event(wall_time=time.time(), step=step)
        for name, array in arrays.items():
            tensor = make_tensor_proto(array)
            event.summary.value.add(tag=name, tensor=tensor, metadata=kinds[name])
        if self._last.done():
            self._wait(self._last)
        self._last = self._thread.submit(self._append, event)

    def _append(self, event: Any) -> None:
        self._records.write(event.SerializeToString())
        if time.monotonic() - self._flushed > _FLUSH_SECS:
            self._records.flush()
            self._flushed = time.monotonic()

    def _wait(self, written: Future[None]) -> None:
        with writing("--workdir", self._workdir):
            written.result()

    def flush(self) -> None:
        """Waits until all rows are in the file. UserError if they cannot be written."""
        self._wait(self._thread.submit(self._records.flush))

    def close(self, error: BaseException | None) -> None:
        """Writes the remaining rows. UserError if it cannot, unless that is not the first error."""
        closed = self._thread.submit(self._close)
        self._thread.shutdown()
        if error is None:
            self._wait(self._last)
            self._wait(closed)

    def _close(self) -> None:
        with self._opened:
            self._records.flush()


def _truncate_after(file: epath.Path, step: int) -> None:
    """Cuts an event file at its first row after `step`, or at what a kill left unfinished.

    Raises UserError if it cannot be read or written.
    """

    with reading("--workdir", file):
        data, end = file.read_bytes(), 0
    while end + _HEADER.size <= len(data):
        start = end + _HEADER.size
        stop = start + _HEADER.unpack_from(data, end)[0]
        try:
            if stop > len(data) or Event.FromString(data[start:stop]).step > step:
                break
        except DecodeError:  # it is damaged, or of another program
            return
        end = stop + _CHECKSUM_BYTES
    if end < len(data):
        save(file, data[:end])
