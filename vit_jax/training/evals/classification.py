"""Accuracy, top-5 accuracy and loss over a labelled split, every example exactly once."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from vit_jax.core.errors import UserError
from vit_jax.training.evals.split_reader import Progress, SplitReader
from vit_jax.training.objective import Objective, top_k_correct


class Classification:
    """Scores parameters on one split.

    A label counts if its weight is at least `label_threshold`; labels without weights weigh 1.
    Means are over the images that have such a label: the others, and bad images that were skipped,
    can be neither right nor wrong, and are counted separately.

    Attributes:
      numbers: the names of the numbers that `run` returns.

    Args:
      objective: converts images to arrays, and has the loss to report (no smoothing or mixup).
      label_threshold: above 0.
      columns: the logits of the data's classes; None: all.
      split: the other arguments of a SplitReader.
    """

    numbers = (
        "accuracy", "loss", "top5_accuracy", "examples", "unlabelled_images", "skipped_images",
    )  # fmt: skip

    def __init__(
        self,
        objective: Objective,
        *,
        label_threshold: float,
        columns: Sequence[int] | None = None,
        **split: Any,
    ):
        self._label_threshold = label_threshold

        def scores(model: Any, batch: Any) -> dict[str, Any]:
            images, targets, _ = objective.inputs(batch)
            logits = model(images)
            if columns is not None:
                logits = logits[:, jnp.asarray(columns)]
            hits = targets >= label_threshold
            return {
                "accuracy": top_k_correct(logits, hits, 1),
                "top5_accuracy": top_k_correct(logits, hits, 5),
                "loss": objective.losses(logits, targets),
                "labelled": hits.any(axis=-1),
            }

        self._split = SplitReader(scores, **split)

    def run(self, params: Any, progress: Progress, stop: Any) -> dict[str, float]:
        """Returns `numbers`: means over `examples` images, and counts, all for the whole split.

        Returns nothing if bool(stop) becomes true meanwhile: there is no time for the rest.
        Raises UserError if no image could be scored.
        """
        found = self._split.read(params, progress, stop)
        if found is None:
            return {}
        labelled, where, total = found["labelled"], self._split.where, self._split.num_examples
        counts = {
            "examples": float(labelled.sum()),
            "unlabelled_images": float((~labelled).sum()),
            "skipped_images": float(total - len(labelled)),
        }
        if not labelled.any():
            raise UserError(
                f"{where}: none of its {total:,} images can be scored: "
                f"{counts['skipped_images']:,.0f} are bad, and {counts['unlabelled_images']:,.0f} "
                f"have no label that weighs at least {where}.label_threshold="
                f"{self._label_threshold:g}."
            )
        # Sums over millions of examples lose digits in float32.
        means = {
            name: float(np.mean(found[name][labelled], dtype=np.float64))
            for name in ("accuracy", "loss", "top5_accuracy")
        }
        return means | counts
