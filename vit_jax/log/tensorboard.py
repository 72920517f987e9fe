"""TensorBoard's files, through clu, which imports TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping

from etils import epath


class TensorBoard:
    """Writes event files into a work directory, in a thread."""

    def __init__(self, workdir: epath.Path):
        from clu import metric_writers

        self._writer = metric_writers.AsyncWriter(metric_writers.SummaryWriter(str(workdir)))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """One row."""
        self._writer.write_scalars(step, values)

    def close(self, error: BaseException | None) -> None:
        """Writes what is left."""
        self._writer.close()
