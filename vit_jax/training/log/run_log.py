"""The log of a run: one record, and the writers that display it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol

import jax
from etils import epath

from vit_jax.store.metrics_file import MetricsFile
from vit_jax.training.histograms import Distributions, Histogram, histogram


class Writer(Protocol):
    """A destination that displays a run's numbers."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Writes one row."""
        ...

    def write_histograms(self, step: int, histograms: Mapping[str, Histogram]) -> None:
        """Writes histograms by name."""
        ...

    def close(self, error: BaseException | None) -> None:
        """Closes it; `error` is the exception that ended an unfinished run."""
        ...


class RunLog:
    """Writes rows of numbers to metrics.jsonl and to `writers`; a context manager.

    Args:
      workdir: where metrics.jsonl and the profiler's files go. Only process 0 writes rows.
      writers: further destinations; closed with the log.
      start_step: rows after it, from an earlier start that went further, are deleted.
      profile: (first step, number of steps) to trace for TensorBoard's profiler, or None.
    """

    def __init__(
        self,
        workdir: epath.Path,
        *,
        writers: Sequence[Writer],
        start_step: int,
        profile: tuple[int, int] | None,
    ):
        self._file: MetricsFile | None = None
        self._writers = writers
        self._after_step: Callable[[int], Any] = lambda step: None
        if jax.process_index() == 0:
            self._file = MetricsFile(workdir / "metrics.jsonl")
            self._file.truncate_after(start_step)
        if profile:
            self._after_step = _profiler(workdir, *profile)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Writes one row."""
        if self._file:
            self._file.write(step, values)
        for writer in self._writers:
            writer.write(step, values)

    def write_distributions(self, step: int, found: Distributions) -> None:
        """Writes a row of their scalars, and histograms, but these not to metrics.jsonl."""
        self.write(step, {name: float(x) for name, x in found.scalars.items()})
        histograms = {name: histogram(counts) for name, counts in found.counts.items()}
        for writer in self._writers:
            writer.write_histograms(step, histograms)

    def after_step(self, step: int) -> None:
        """Starts and stops the profiler, if there is one."""
        self._after_step(step)

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for writer in self._writers:
            writer.close(error)


def _profiler(workdir: epath.Path, first_step: int, num_steps: int) -> Callable[[int], Any]:
    """clu's profiler action; it imports TensorFlow."""
    from clu import periodic_actions

    return periodic_actions.Profile(
        logdir=str(workdir),
        num_profile_steps=num_steps,
        profile_duration_ms=0,
        first_profile=first_step,
        every_secs=None,
    )
