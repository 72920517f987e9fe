"""The count of bad images that training has skipped, and the limit on it."""

from collections.abc import Sequence
from typing import Any

from vit_jax.core.errors import UserError
from vit_jax.training.feed import BadImages

NUMBER = "input/skipped_images"


class SkippedImages:
    """Counts skipped images over all hosts and all starts of the run.

    Args:
      files: this host's bad images; the first is named when there are too many.
      before: how many were skipped before this start.
      step: updates done before this start.
      batch_size: the global batch size.
      num_examples: examples in an epoch.
      max_fraction: fraction of an epoch; UserError when more are skipped.
    """

    def __init__(
        self,
        files: BadImages,
        *,
        before: float,
        step: int,
        batch_size: int,
        num_examples: int,
        max_fraction: float,
    ):
        self._files, self._total, self._written = files, before, before
        self._step, self._batch_size, self._num_examples = step, batch_size, num_examples
        self._max_fraction = max_fraction
        self._epoch, self._in_epoch = -1, 0
        self.pending: list[Any] = []  # counts of the steps since the last `settle`, on the devices

    def add(self, scalars: dict[str, Any]) -> None:
        """Adds a step's count without waiting; a step whose batch is left out skips no image."""
        self.pending.append(scalars.get("skipped_images", 0))

    def settle(self, counts: Sequence[Any]) -> dict[str, float]:
        """Adds the values of `pending` and empties it; returns `row`, or {} if already written.

        Raises:
          UserError: all images of a batch were bad, or too many of an epoch.
        """
        self.pending = []
        for count in map(int, counts):
            epoch = self._step * self._batch_size // self._num_examples
            self._in_epoch = count + (self._in_epoch if epoch == self._epoch else 0)
            self._epoch, self._step = epoch, self._step + 1
            self._total += count
            if count == self._batch_size:
                raise UserError(
                    f"All {count:,} images of step {self._step:,} are bad. {self._examples()}"
                    "Nothing can be learned from that; correct the data."
                )
            # Which images of a batch were bad is unknown: they may belong to the next epoch.
            of_next = max(0, self._step * self._batch_size - (epoch + 1) * self._num_examples)
            if self._in_epoch > self._max_fraction * self._num_examples + of_next:
                raise UserError(
                    f"{self._in_epoch:,} bad images were skipped in epoch {epoch + 1:,} up to step "
                    f"{self._step:,}, more than input.max_bad_fraction={self._max_fraction:g} of "
                    f"its {self._num_examples:,} examples. {self._examples()}"
                    "Correct the data, or raise input.max_bad_fraction."
                )

        return {} if self._total == self._written else self.row()

    def row(self) -> dict[str, float]:
        """The count for metrics.jsonl, from which a later start continues."""
        self._written = self._total
        return {NUMBER: float(self._total)}

    def _examples(self) -> str:
        return f"The first: {self._files.files[0]}. " if self._files.files else ""
