"""TensorBoard's files, through clu, which imports TensorFlow."""

from collections.abc import Mapping

import numpy as np
from etils import epath

from vit_jax.training.histograms import Histogram


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
