"""Accuracy, top-5 accuracy and loss over a labelled split, every example exactly once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh

from vit_jax import metrics
from vit_jax.core import axes
from vit_jax.dist import mesh as meshes
from vit_jax.objective import Batch, Objective

Progress = Callable[[int, int], None]  # batches done, batches in all


class Classification:
    """Scores parameters on one split.

    Attributes:
      numbers: the names of what `run` returns.

    Args:
      graph: merges with the parameters to a model.
      mesh: where they live.
      objective: how images become arrays, and the loss to report (without smoothing and mixup).
      open_feed: opens the split anew: a feed of batches, and their number.
    """

    numbers = ("accuracy", "top5_accuracy", "loss", "examples", "skipped_images")

    def __init__(
        self,
        *,
        graph: nnx.GraphDef,
        mesh: Mesh,
        objective: Objective,
        open_feed: Callable[[], tuple[Any, int]],
    ):
        self._open_feed = open_feed
        self._mesh = mesh

        def sums(params: Any, batch: Batch) -> dict[str, jax.Array]:
            images, targets, weight = objective.inputs(batch)
            logits = nnx.merge(graph, params)(images)
            each = {
                "accuracy": metrics.top_k_correct(logits, targets, 1),
                "top5_accuracy": metrics.top_k_correct(logits, targets, 5),
                "loss": objective.losses(logits, targets),
                "examples": jnp.ones_like(weight),
            }
            return {name: jnp.sum(x * weight) for name, x in each.items()}

        self._sums = jax.jit(sums, out_shardings=meshes.replicated(mesh))

    def run(self, params: Any, progress: Progress, stop: Any) -> dict[str, float]:
        """Returns `numbers`: means over the examples that are no bad images, and counts.

        Nothing if bool(stop) becomes true on the way: whoever stops has no time for the rest.
        """
        parts = []
        feed, num_batches = self._open_feed()
        with feed, jax.set_mesh(self._mesh), axes.use_rules(meshes.RULES):
            for done, batch in enumerate(feed, start=1):
                parts.append(self._sums(params, batch))
                if len(parts) > 1:  # wait for the one before: bounds the batches in flight
                    jax.block_until_ready(parts[-2])
                progress(done, num_batches)
                if stop:
                    return {}
        # Float64 on the host: sums over millions of examples lose digits in float32.
        totals = {k: sum(float(p[k]) for p in jax.device_get(parts)) for k in parts[0]}
        examples = totals.pop("examples")
        means = {name: total / max(examples, 1.0) for name, total in totals.items()}
        return {**means, "examples": examples, "skipped_images": float(feed.skipped_images)}
