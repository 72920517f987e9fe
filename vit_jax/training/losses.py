"""Classification losses, one number per example; targets are rows of class weights."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def multi_hot(labels: jax.Array, num_classes: int, weights: jax.Array | None = None) -> jax.Array:
    """int32 [B, K] labels, unused places -1 -> float32 [B, C], 1 at each label.

    With `weights`, float32 [B, K] in [0, 1], the label's weight instead of 1. A row of -1 alone
    gives zeros; a label that is named twice counts once, with the larger of its weights.
    """
    hot = jax.nn.one_hot(labels, num_classes, dtype=jnp.float32)
    if weights is not None:
        hot *= weights[..., None]
    return hot.max(axis=1)


def smooth_labels(targets: jax.Array, smoothing: float) -> jax.Array:
    """[B, C] -> [B, C]; moves the share `smoothing` of a row's weight to all classes alike.

    arXiv 1512.00567, section 7.
    """
    uniform = targets.sum(axis=-1, keepdims=True) / targets.shape[-1]
    return (1.0 - smoothing) * targets + smoothing * uniform


def softmax_cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """[B, C], [B, C] -> float32 [B]; cross-entropy to the row of targets made to sum to one.

    So an image with several labels is asked to divide its probability between them, evenly or by
    their weights, and the loss's size does not depend on their number. A row without a label, or
    whose labels all weigh 0, gives 0.
    """
    total = targets.sum(axis=-1)
    log_p = jax.nn.log_softmax(logits.astype(jnp.float32))
    return -(targets * log_p).sum(axis=-1) / jnp.where(total > 0, total, 1.0)


def sigmoid_cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """[B, C], [B, C] -> float32 [B]; each class a yes-or-no question, summed over classes.

    The paper's loss for ImageNet-21k and JFT (arXiv 2010.11929, appendix B.1); a mean over classes
    would be smaller by a factor of C and need another learning rate and clipping norm.
    """
    logits = logits.astype(jnp.float32)
    yes, no = jax.nn.log_sigmoid(logits), jax.nn.log_sigmoid(-logits)
    return -(targets * yes + (1.0 - targets) * no).sum(axis=-1)


LOSSES = {"softmax": softmax_cross_entropy, "sigmoid": sigmoid_cross_entropy}
