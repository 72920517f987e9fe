"""Semantic segmentation: a class for each pixel, by the head that `model.dense` names.

The logits are upsampled to the mask's size; pixels without a class count for nothing.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from vit_jax.core.schema.fields import field
from vit_jax.data.source import MASK
from vit_jax.learning.losses import softmax_cross_entropy
from vit_jax.learning.method import LossOutput, Method, StepContext, StepInputs
from vit_jax.models import dense


@dataclasses.dataclass(frozen=True)
class Segmentation(Method):
    """The fields of config.method; `loss.kind` is that of a pixel."""

    kind: str = field("segmentation")
    dice: float = field(
        0.0,
        "weight of the soft Dice loss (arXiv 1606.04797) of each class that an image has, beside "
        "the loss of its pixels",
        bounds=(0, 1e3),
    )

    uses_labels = True
    reads_maps = (MASK,)
    reads_of_loss = ("kind",)

    def loss(
        self, model: Any, inputs: StepInputs, key: jax.Array, context: StepContext
    ) -> LossOutput:
        """The mean loss of an image's pixels that have a class; the share that is right."""
        mask = inputs.batch[MASK].astype(jnp.int32)
        logits = dense.resized(model(inputs.images, train=True, rngs=key), mask.shape[1:])
        losses, correct, counted = pixel_means(logits, mask, context.label_losses)
        losses = losses + self.dice * dice_losses(logits, mask) if self.dice else losses
        return LossOutput(losses, {"accuracy": (correct, counted)})


def pixel_means(
    logits: jax.Array, mask: jax.Array, loss: Callable[..., jax.Array] | None = None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Means over the pixels with a class of each image, [B], 0 without such a pixel.

    Their losses, and the share that the largest logits get right; then whether there is any.

    Args:
      logits: [B, H, W, C].
      mask: int32 [B, H, W], classes from 1, 0 for none.
      loss: (logits, targets) -> losses; None: cross-entropy.
    """
    known = (mask > 0).astype(jnp.float32)
    number = jnp.sum(known, (1, 2))
    losses = (loss or softmax_cross_entropy)(logits, one_hot(mask, logits))
    right = (jnp.argmax(logits, -1) == mask - 1).astype(jnp.float32)

    def mean(x: jax.Array) -> jax.Array:
        return jnp.sum(x * known, (1, 2)) / jnp.maximum(number, 1.0)

    return mean(losses), mean(right), number > 0


def one_hot(mask: jax.Array, logits: jax.Array) -> jax.Array:
    """[B, H, W], [B, H, W, C] -> float32 [B, H, W, C]; zeros where a pixel has no class."""
    return jax.nn.one_hot(mask - 1, logits.shape[-1])


def dice_losses(logits: jax.Array, mask: jax.Array) -> jax.Array:
    """As `pixel_means` -> [B]: 1 - 2 |P T| / (|P| + |T|), mean over the classes that T has."""
    targets = one_hot(mask, logits)
    p = jax.nn.softmax(logits) * (mask > 0)[..., None]
    both, size = (jnp.sum(x, (1, 2)) for x in (2 * p * targets, p + targets))
    has = (jnp.sum(targets, (1, 2)) > 0).astype(jnp.float32)
    lacking = jnp.sum(has * (1 - both / jnp.maximum(size, 1e-9)), -1)
    return lacking / jnp.maximum(jnp.sum(has, -1), 1.0)
