"""Metrics per example other than the loss."""

import jax
import jax.numpy as jnp


def top_k_correct(logits: jax.Array, labels: jax.Array, k: int) -> jax.Array:
    """[B, C], bool [B, C] -> float32 [B]: 1 if any of the k highest logits is at a label.

    An example without a label gives 0; with k >= C every other one gives 1. Equal logits rank by
    class number.
    """
    _, classes = jax.lax.top_k(logits, min(k, logits.shape[-1]))
    return jnp.take_along_axis(labels, classes, axis=-1).any(axis=-1).astype(jnp.float32)


def main_labels(targets: jax.Array) -> jax.Array:
    """[B, C] -> bool [B, C]: the largest target of each row; none in a row of zeros.

    In a blend of two images it is the larger share's label, with weighted labels the heaviest.
    """
    return (targets >= targets.max(axis=-1, keepdims=True)) & (targets > 0)
