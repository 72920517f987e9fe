"""Depth of each pixel, by a head that `model.dense` names, whose only number is its logarithm."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from vit_jax.core.schema.fields import UP_TO_1, field
from vit_jax.data.source import DEPTH
from vit_jax.learning.method import LossOutput, Method, StepContext, StepInputs
from vit_jax.models import dense


@dataclasses.dataclass(frozen=True)
class Depth(Method):
    """The fields of config.method."""

    kind: str = field("depth")
    unit: float = field(
        0.001, "of the stored numbers, such as 0.001 m or 1/256 m", bounds=(1e-9, 1e9)
    )
    invariance: float = field(
        0.5,
        "share of an error in scale, the same for all of an image, that is not counted: lambda of "
        "arXiv 1406.2283, equation 4",
        bounds=(0, UP_TO_1),
    )

    uses_labels = True
    num_outputs = 1
    reads_maps = (DEPTH,)

    def loss(
        self, model: Any, inputs: StepInputs, key: jax.Array, context: StepContext
    ) -> LossOutput:
        """The scale-invariant error of logarithms over an image's pixels that have a depth."""
        depth = inputs.batch[DEPTH]
        predicted = dense.resized(model(inputs.images, train=True, rngs=key), depth.shape[1:])
        known, number = known_pixels(depth)
        error = jnp.where(known, predicted[..., 0] - jnp.log(self.measured(depth)), 0.0)
        mean, square = (jnp.sum(x, (1, 2)) / number for x in (error, error**2))
        return LossOutput(square - self.invariance * mean**2, {})

    def measured(self, depth: jax.Array) -> jax.Array:
        """Stored numbers -> depths; those of pixels without one are one unit."""
        return self.unit * jnp.maximum(depth.astype(jnp.float32), 1.0)


def known_pixels(depth: jax.Array) -> tuple[jax.Array, jax.Array]:
    """[B, H, W] -> bool [B, H, W], and their number in each image, at least 1, [B]."""
    known = depth > 0
    return known, jnp.maximum(jnp.sum(known, (1, 2)), 1)
