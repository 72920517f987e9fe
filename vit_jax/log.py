"""Where the numbers of a run go: metrics.jsonl and TensorBoard."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

import jax
from etils import epath

from vit_jax.store.metrics_file import MetricsFile


class RunLog:
    """Writes rows of numbers; a context manager. Only process 0 writes.

    Args:
      workdir: gets metrics.jsonl, and TensorBoard's files if `tensorboard`.
      start_step: rows above it were written by a run that had gone on from here; they go.
      profile: (first step, number of steps) to trace for TensorBoard's profiler, or None.
    """

    def __init__(
        self,
        workdir: epath.Path,
        *,
        tensorboard: bool,
        start_step: int,
        profile: tuple[int, int] | None,
    ):
        self._file: MetricsFile | None = None
        self._board: Any = None
        self._after_step: Callable[[int], Any] = lambda step: None
        if jax.process_index() == 0:
            self._file = MetricsFile(workdir / "metrics.jsonl")
            self._file.truncate_after(start_step)
            if tensorboard:
                self._board = _board(workdir)
        if profile:
            self._after_step = _profiler(workdir, *profile)

    def write(self, step: int, values: dict[str, float]) -> None:
        """One row."""
        if self._file:
            self._file.write(step, values)
        if self._board:
            self._board.write_scalars(step, values)

    def after_step(self, step: int) -> None:
        """Starts and stops the profiler, where one is wanted."""
        self._after_step(step)

    def row(self, step: int) -> dict[str, float]:
        """All that was written for `step`; empty if nothing was."""
        rows = self._file.rows() if self._file else []
        return {k: v for row in rows if row["step"] == step for k, v in row.items()}

    def __enter__(self) -> RunLog:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._board:
            self._board.close()


def write_parameters(workdir: epath.Path, params: Any) -> None:
    """parameters.txt: name, shape, type, size and sharding of every parameter, by clu."""
    from clu import parameter_overview

    if jax.process_index() == 0:
        table = parameter_overview.get_parameter_overview(params, include_stats="sharding")
        (workdir / "parameters.txt").write_text(f"{table}\n")


def _board(workdir: epath.Path) -> Any:
    """TensorBoard's files through clu, which imports TensorFlow; written in a thread."""
    from clu import metric_writers

    return metric_writers.AsyncWriter(metric_writers.SummaryWriter(str(workdir)))


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
