"""What is minimised and measured: from a batch as it arrives on the devices to a loss."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from vit_jax.training import losses

# "image" uint8 [B, H, W, 3], "labels" int32 [B, K] padded with -1, "weight" float32 [B]; where
# labels are weighted, "label_weights" float32 [B, K] besides.
Batch = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Objective:
    """The loss by name, and what happens to images and labels before it."""

    loss: str  # a key of losses.LOSSES
    label_smoothing: float
    mixup_alpha: float  # of mixing.py, as the next; 0: off
    cutmix_alpha: float
    num_classes: int
    grad_accum_steps: int  # parts that a batch is worked off in
    freeze: tuple[str, ...]  # patterns of parameters that are not trained (optim/patterns.py)
    mean: tuple[float, ...]  # of RGB in [0, 1]
    std: tuple[float, ...]
    binarize_targets: bool = False  # every label that is in a blend counts 1

    def inputs(self, batch: Batch) -> tuple[jax.Array, jax.Array, jax.Array]:
        """A batch -> normalised images [B, H, W, 3], targets [B, C], weight [B]; all float32."""
        mean, std = jnp.asarray(self.mean), jnp.asarray(self.std)
        images = (batch["image"].astype(jnp.float32) / 255.0 - mean) / std
        targets = losses.multi_hot(batch["labels"], self.num_classes, batch.get("label_weights"))
        return images, targets, batch["weight"]

    def asked(self, targets: jax.Array) -> jax.Array:
        """What the loss asks for, [B, C] -> [B, C]: the targets whole or as shares, smoothed."""
        if self.binarize_targets:
            targets = (targets > 0).astype(targets.dtype)
        return losses.smooth_labels(targets, self.label_smoothing)

    def losses(self, logits: jax.Array, targets: jax.Array) -> jax.Array:
        """[B, C], [B, C] -> [B]."""
        return losses.LOSSES[self.loss](logits, targets)
