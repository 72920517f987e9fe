"""Accuracy, top-5 accuracy and loss over a labelled split, every example exactly once."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh

from vit_jax.core import axes
from vit_jax.core.errors import UserError
from vit_jax.parallel import mesh as meshes
from vit_jax.training.objective import Batch, Objective, top_k_correct

Progress = Callable[[int, int], None]  # batches done, batches in all


class Classification:
    """Scores parameters on one split.

    A label counts if its weight is at least `label_threshold`; labels without weights weigh 1.
    Means are over the images that have such a label: the others, and bad images that were skipped,
    can be neither right nor wrong, and are counted separately.

    Attributes:
      numbers: the names of the numbers that `run` returns.

    Args:
      graph: merges with the parameters to a model.
      mesh: the mesh of the parameters.
      objective: converts images to arrays, and has the loss to report (no smoothing or mixup).
      open_feed: opens the split anew: a feed of batches, and their number.
      num_examples: number of examples in the whole split, on all hosts.
      label_threshold: above 0.
      where: the section of the config, for messages.
      columns: the logits of the data's classes; None: all.
    """

    numbers = (
        "accuracy", "top5_accuracy", "loss", "examples", "unlabelled_images", "skipped_images",
    )  # fmt: skip

    def __init__(
        self,
        *,
        graph: nnx.GraphDef,
        mesh: Mesh,
        objective: Objective,
        open_feed: Callable[[], tuple[Any, int]],
        num_examples: int,
        label_threshold: float,
        where: str,
        columns: Sequence[int] | None = None,
    ):
        self._open_feed, self._num_examples = open_feed, num_examples
        self._mesh = mesh
        self._where, self._label_threshold = where, label_threshold

        def sums(params: Any, batch: Batch) -> dict[str, jax.Array]:
            images, targets, good = objective.inputs(batch)
            logits = nnx.merge(graph, params)(images)
            if columns is not None:
                logits = logits[:, jnp.asarray(columns)]
            hits = targets >= label_threshold
            scored = good * hits.any(axis=-1)
            each = {
                "accuracy": top_k_correct(logits, hits, 1),
                "top5_accuracy": top_k_correct(logits, hits, 5),
                "loss": objective.losses(logits, targets),
                "examples": jnp.ones_like(scored),
            }
            return {name: jnp.sum(x * scored) for name, x in each.items()} | {"good": good.sum()}

        self._sums = jax.jit(sums, out_shardings=meshes.replicated(mesh))

    def run(self, params: Any, progress: Progress, stop: Any) -> dict[str, float]:
        """Returns `numbers`: means over `examples` images, and counts, all for the whole split.

        Returns nothing if bool(stop) becomes true meanwhile: there is no time for the rest.
        Raises UserError if no image could be scored.
        """
        parts = []
        feed, num_batches = self._open_feed()
        with feed, jax.set_mesh(self._mesh), axes.use_rules(meshes.RULES):
            for done, batch in enumerate(feed, start=1):
                parts.append(self._sums(params, batch))
                if len(parts) > 1:  # wait for the previous one: bounds the batches in flight
                    jax.block_until_ready(parts[-2])
                progress(done, num_batches)
                if stop:
                    return {}
        # Float64 on the host: sums over millions of examples lose digits in float32.
        totals = {k: sum(float(p[k]) for p in jax.device_get(parts)) for k in parts[0]}
        examples, good = totals.pop("examples"), totals.pop("good")
        counts = {
            "examples": examples,
            "unlabelled_images": good - examples,
            "skipped_images": self._num_examples - good,
        }
        if not examples:
            raise UserError(
                f"{self._where}: none of its {self._num_examples:,} images can be scored: "
                f"{counts['skipped_images']:,.0f} are bad, and {counts['unlabelled_images']:,.0f} "
                f"have no label that weighs at least {self._where}.label_threshold="
                f"{self._label_threshold:g}."
            )
        return {name: total / examples for name, total in totals.items()} | counts
