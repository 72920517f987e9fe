"""Relevance of tokens for a class, from gradients.

Of ViTs: the rules of Chefer, Gur and Wolf (arXiv 2103.15679, section 3.1, equations 5 and 6). Of
feature maps: Grad-CAM (arXiv 1610.02391, section 3, equations 1 and 2). All functions take NumPy's
arrays or JAX's, and return the same.
"""

from vit_jax.probes.attention.arrays import Array


def positive(weights: Array, gradients: Array) -> Array:
    """Weights and gradients by them, [..., H, N, N] -> [..., N, N]: equation 5.

    The relu of their products, mean over heads.
    """
    return (weights * gradients).clip(0).mean(axis=-3)


def accumulated(relevance: Array, layer: Array) -> Array:
    """One token's relevance [..., N] and `positive` of the layer before it [..., N, N] -> [..., N].

    R <- R + A R (equation 6) for all tokens, first layer first, and then the row of one token, is
    the same as r <- r + r A for that row alone, last layer first.
    """
    return relevance + (relevance[..., None, :] @ layer)[..., 0, :]


def grad_cam(features: Array, gradients: Array) -> Array:
    """A feature map and a class score's gradients by it, [..., h, w, C] -> [..., h, w].

    The relu of the channels' sum, each weighted by the mean of its gradient over all positions.
    """
    importance = gradients.mean(axis=(-3, -2), keepdims=True)
    return (features * importance).sum(axis=-1).clip(0)
