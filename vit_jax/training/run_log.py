"""The log of a run: metrics.jsonl, and TensorBoard's files, by clu, which imports TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from etils import epath

from vit_jax.core.errors import UserError
from vit_jax.store.metrics_file import MetricsFile
from vit_jax.training.histograms import Distributions, Histogram, histogram
from vit_jax.training.weights_and_biases import WeightsAndBiases


class RunLog:
    """Writes rows of numbers to metrics.jsonl and to `writers`; a context manager.

    Args:
      workdir: where metrics.jsonl and the profiler's files go. Only process 0 writes rows.
      writers: further destinations; closed with the log.
      start_step: rows after it, from an earlier start that went further, are deleted.
      profile: (first step, number of steps) to trace for TensorBoard's profiler, or None.

    Attributes:
      after_step: to be called after each step; starts and stops the profiler, if there is one.
    """

    def __init__(
        self,
        workdir: epath.Path,
        *,
        writers: Sequence[TensorBoard | WeightsAndBiases],
        start_step: int,
        profile: tuple[int, int] | None,
    ):
        self._file: MetricsFile | None = None
        self._writers = writers
        self.after_step: Callable[[int], Any] = lambda step: None
        if jax.process_index() == 0:
            self._file = MetricsFile(workdir / "metrics.jsonl")
            self._file.truncate_after(start_step)
        if profile:
            from clu import periodic_actions  # imports TensorFlow

            first_step, num_steps = profile
            self.after_step = periodic_actions.Profile(
                logdir=str(workdir),
                num_profile_steps=num_steps,
                profile_duration_ms=0,
                first_profile=first_step,
                every_secs=None,
            )

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Writes one row."""
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
        for writer in self._writers:
            writer.close(error)


class TensorBoard:
    """Writes event files into a work directory, in a thread."""

    def __init__(self, workdir: epath.Path):
        from clu import metric_writers

        self._writer = metric_writers.AsyncWriter(metric_writers.SummaryWriter(str(workdir)))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Writes one row."""
        self._writer.write_scalars(step, values)

    def write_histograms(self, step: int, histograms: Mapping[str, Histogram]) -> None:
        """Writes tensors [K, 3] of left edges, right edges and counts, as TensorBoard requires."""
        from tensorboard.plugins.histogram import metadata

        arrays = {
            name: np.stack([h.edges[:-1], h.edges[1:], h.counts], axis=1)
            for name, h in histograms.items()
        }
        kinds = {name: metadata.create_summary_metadata(name, "") for name in histograms}
        self._writer.write_summaries(step, arrays, kinds)

    def close(self, error: BaseException | None) -> None:
        """Writes the remaining rows."""
        self._writer.close()


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
