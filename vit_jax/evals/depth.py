"""Depth: errors of a whole split, the mean over its images of each image's."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.core.errors import UserError
from vit_jax.core.schema.fields import field
from vit_jax.data.source import DEPTH
from vit_jax.evals.kind import EvalConfig, EvalInputs, Progress
from vit_jax.learning.methods.depth import known_pixels
from vit_jax.models import dense

NUMBERS = ("rmse", "abs_rel", "delta1", "delta2", "delta3")


@dataclasses.dataclass(frozen=True)
class DepthConfig(EvalConfig):
    """Root mean square error, mean relative error, and shares of pixels within 1.25^k."""

    kind: str = field("depth")
    stride: float = dense.STRIDE

    reads_maps = (DEPTH,)
    slides = True

    def numbers(self) -> tuple[str, ...]:
        return (*NUMBERS, "examples")

    def make(self, inputs: EvalInputs) -> Depth:
        return Depth(self, inputs)


class Depth:
    """Scores parameters on one split; pixels without a depth count for nothing."""

    def __init__(self, c: DepthConfig, inputs: EvalInputs):
        objective = inputs.objective
        method: Any = objective.method
        if DEPTH not in method.reads_maps:
            raise UserError(f"evals: kind=depth needs method.kind=depth, not {method.kind}.")

        def scores(model: Any, batch: Any) -> dict[str, Any]:
            logits = dense.sliding(model, objective.images(batch), c.stride)
            found = errors(jnp.exp(logits[..., 0]), method.measured(batch[DEPTH]), batch[DEPTH])
            return found | {"counted": (batch[DEPTH] > 0).any((1, 2))}

        self._split = inputs.read(scores)

    def run(self, params: Any, progress: Progress, stop: Any) -> dict[str, float]:
        """The numbers; nothing if bool(stop) becomes true meanwhile. UserError without a pixel."""
        arrays = self._split.read(params, progress, stop)
        if arrays is None:
            return {}
        counted = arrays["counted"]
        if not counted.any():
            raise UserError(f"{self._split.where}: no pixel of its images has a depth.")
        means = {n: float(np.mean(arrays[n][counted], dtype=np.float64)) for n in NUMBERS}
        return means | {"examples": float(counted.sum())}


def errors(predicted: jax.Array, depth: jax.Array, stored: jax.Array) -> dict[str, jax.Array]:
    """[B, H, W] each -> NUMBERS of each image, [B], over the pixels where `stored` is not 0."""
    known, number = known_pixels(stored)

    def mean(x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.where(known, x, 0.0), (1, 2)) / number

    difference = predicted - depth
    ratio = jnp.maximum(predicted / depth, depth / predicted)
    within = {f"delta{k}": mean((ratio < 1.25**k).astype(jnp.float32)) for k in (1, 2, 3)}
    relative = mean(jnp.abs(difference) / depth)
    return {"rmse": jnp.sqrt(mean(difference**2)), "abs_rel": relative, **within}
