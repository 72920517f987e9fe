"""The log of a run: metrics.jsonl, traces, and further destinations, one file each."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import jax
from etils import epath

from vit_jax.store.metrics import MetricsFile
from vit_jax.store.workdir import PICTURES, make, save

if TYPE_CHECKING:
    from vit_jax.learning.histograms import Distributions, Histogram

_NONE: Mapping[str, bytes] = {}
_COUNTS = ("examples", "_images")  # endings of names of numbers that are mostly constant


class Logger(Protocol):
    """A destination of a run's numbers beside metrics.jsonl, in process 0.

    `write` is enough: what an object does not have is left out. `flush`, for one that does not send
    each row at once, makes all of them survive a kill.
    """

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Writes one row; a resumed run writes the rows after its checkpoint again."""

    def write_histograms(self, step: int, histograms: Mapping[str, Histogram]) -> None:
        """Writes histograms by name."""

    def write_pictures(self, step: int, pictures: Mapping[str, bytes]) -> None:
        """Writes PNG files by name."""

    def close(self, error: BaseException | None) -> None:
        """Ends the log, with what the run ended with."""


class RunLog:
    """Writes rows of numbers to metrics.jsonl and to `writers`; a context manager.

    Args:
      workdir: where metrics.jsonl and the profiler's files go. Only process 0 writes rows.
      writers: further destinations; closed with the log. `add` takes more.
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
        self._writers = list(writers)
        self._first_counts: dict[str, float] = {}
        self._moving: set[str] = set()
        self._to_draw: list[tuple[int, Callable[[], Mapping[str, bytes]]]] = []
        if jax.process_index() == 0:
            self._file = MetricsFile(workdir / "metrics.jsonl")
            self._file.truncate_after(start_step)
            for row in self._file.rows() if start_step else ():
                self._without_constants(row)
            for file in (workdir / PICTURES).glob("*/*/*.png"):
                if file.stem.isdecimal() and int(file.stem) > start_step:
                    file.unlink()
        self._workdir, self._profile, self._is_tracing = workdir, profile, False

    def add(self, writer: Logger) -> None:
        """Adds a destination of all that comes."""
        self._writers.append(writer)

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
        """Writes one row, after the pictures of its step, PNG files by name: NAME/STEP.png."""
        self._draw()
        self.write_pictures(step, pictures)
        if self._file:
            self._file.write(step, values)
        if moving := self._without_constants(values):
            for writer in self._writers:
                writer.write(step, moving)

    def draw_later(self, step: int, draw: Callable[[], Mapping[str, bytes]]) -> None:
        """Writes the pictures that a function draws, before the next row or at the end."""
        if self._file:
            self._to_draw.append((step, draw))

    def _draw(self) -> None:
        while self._to_draw:
            step, draw = self._to_draw.pop(0)
            self.write_pictures(step, draw())

    def write_pictures(self, step: int, pictures: Mapping[str, bytes]) -> None:
        """Writes PNG files by name: NAME/STEP.png."""
        if self._file and pictures:
            for name, png in pictures.items():
                file = self._workdir / PICTURES / name / f"{step}.png"
                make(file.parent)
                save(file, png)
            self._call("write_pictures", step, pictures)

    def _without_constants(self, values: Mapping[str, float]) -> dict[str, float]:
        """The numbers without counts that have been the same since the run began."""
        counts = {name: x for name, x in values.items() if name.endswith(_COUNTS)}
        for name, x in counts.items():
            if self._first_counts.setdefault(name, x) != x:
                self._moving.add(name)
        return {k: x for k, x in values.items() if k not in counts or k in self._moving}

    def write_distributions(self, step: int, distributions: Distributions) -> None:
        """Writes a row of their scalars, and histograms, but these not to metrics.jsonl."""
        from vit_jax.learning.histograms import histogram

        self.write(step, {name: float(x) for name, x in distributions.scalars.items()})
        histograms = {name: histogram(counts) for name, counts in distributions.counts.items()}
        self._call("write_histograms", step, histograms)

    def flush(self) -> None:
        """Makes all rows survive a kill, as a run does that goes on from the next checkpoint."""
        if self._file:
            self._file.flush()
        self._call("flush")

    def _call(self, method: str, *arguments: Any) -> None:
        for writer in self._writers:
            getattr(writer, method, _nothing)(*arguments)

    def row(self, step: int) -> dict[str, float]:
        """All numbers written for `step`, null as NaN; empty if there are none."""
        rows = [row for row in (self._file.rows() if self._file else []) if row["step"] == step]
        return {k: math.nan if v is None else v for row in rows for k, v in row.items()}

    def values(self, name: str | None) -> list[tuple[int, float | None]]:
        """(step, number) of this name, null as None; none of them in another process."""
        rows = self._file.rows() if self._file else []
        return [(row["step"], row[name]) for row in rows if name in row]

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with contextlib.ExitStack() as closing:  # all of them, whichever fails; the last one first
            for writer in reversed(self._writers):
                closing.callback(getattr(writer, "close", _nothing), error)
            if self._is_tracing:
                closing.callback(self._stop_tracing)
            if self._file:
                closing.callback(self._file.flush)
            closing.callback(self._draw)


def _nothing(*_: Any) -> None:
    """Does nothing, for a writer that has no such method."""


def write_parameters(workdir: epath.Path, params: Any) -> None:
    """parameters.txt: name, shape, type, size and sharding of every parameter, by clu."""
    from clu import parameter_overview

    if jax.process_index() == 0:
        table = parameter_overview.get_parameter_overview(params, include_stats="sharding")
        save(workdir / "parameters.txt", f"{table}\n")
