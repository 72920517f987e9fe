"""Numbers from weights of attention.

Rollout (arXiv 2005.00928, section 3; 2010.11929, appendix D.8). Relevance of tokens for a class,
from gradients: of ViTs the rules of Chefer, Gur and Wolf (arXiv 2103.15679, section 3.1, equations
5 and 6), of feature maps Grad-CAM (arXiv 1610.02391, section 3, equations 1 and 2). Mean attention
distance (arXiv 2010.11929, section 4.5 and figure 7): how far heads look. Tokens of high norm:
where a ViT keeps what is not local (arXiv 2309.16588, section 2).
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

# The paper's cutoff is read off each model's histogram: 150 for DINOv2 g, where most norms lie
# around 50.
RATIO_TO_MEDIAN = 3.0


def with_residual(weights: jax.Array) -> jax.Array:
    """[..., H, N, N], rows that sum to 1 -> [..., N, N], likewise: A = (W + I) / 2.

    W is the mean over heads; I stands for the residual connection, which adds the token itself.
    """
    mean = weights.mean(axis=-3)
    return (mean + jnp.eye(mean.shape[-1], dtype=mean.dtype)) / 2


def rollout(layers: Sequence[jax.Array] | jax.Array) -> jax.Array:
    """A_l = `with_residual` of L layers, [N, N] each, first layer first -> A_L ... A_2 A_1, [N, N].

    Row i is how much token i after the last layer has taken from each token that entered the first;
    it sums to 1. Any leading axes of the layers are batch axes.
    """
    first, *rest = layers
    for each in rest:
        first = jnp.matmul(each, first)
    return first


def positive(weights: jax.Array, gradients: jax.Array) -> jax.Array:
    """Weights and gradients by them, [..., H, N, N] -> [..., N, N]: equation 5.

    The relu of their products, mean over heads.
    """
    return (weights * gradients).clip(0).mean(axis=-3)


def accumulated(relevance: jax.Array, layer: jax.Array) -> jax.Array:
    """One token's relevance [..., N] and `positive` of the layer before it [..., N, N] -> [..., N].

    R <- R + A R (equation 6) for all tokens, first layer first, and then the row of one token, is
    the same as r <- r + r A for that row alone, last layer first.
    """
    return relevance + (relevance[..., None, :] @ layer)[..., 0, :]


def grad_cam(features: jax.Array, gradients: jax.Array) -> jax.Array:
    """A feature map and a class score's gradients by it, [..., h, w, C] -> [..., h, w].

    The relu of the channels' sum, each weighted by the mean of its gradient over all positions.
    """
    importance = gradients.mean(axis=(-3, -2), keepdims=True)
    return (features * importance).sum(axis=-1).clip(0)


def patch_distances(grid: tuple[int, int], pixels_per_patch: tuple[float, float]) -> np.ndarray:
    """Distances between the centres of all patches in pixels, [P, P] float64; row by row.

    Args:
      grid: (rows, columns), P of them.
      pixels_per_patch: (height, width) of each in the image.
    """
    rows, columns = np.indices(grid).reshape(2, -1, 1).astype(np.float64)
    height, width = pixels_per_patch
    return np.hypot((rows - rows.T) * height, (columns - columns.T) * width)


def mean_distance(weights: jax.Array, distances: jax.Array) -> jax.Array:
    """Weights among patches [..., P, P] and distances [P, P] -> [...]: pixels.

    For each query the mean of the distances to all patches, weighted by their attention, then the
    mean over queries. What a query gives to a class token or to registers has no distance: the
    weights of the patches are taken relative to their own sum. A query that gives them nothing
    counts as 0.
    """
    sums = weights.sum(axis=-1)
    weighted = (weights * distances).sum(axis=-1)
    return (weighted / (sums + (sums == 0))).mean(axis=-1)


def outliers(patch_norms: np.ndarray) -> np.ndarray:
    """Norms of patch tokens at one layer, any shape -> bool of that shape: the outliers.

    An outlier's norm is above RATIO_TO_MEDIAN times the median of all that are given: of the
    patches of several images, at best. Class token and registers do not belong to them.
    """
    return patch_norms > RATIO_TO_MEDIAN * np.median(patch_norms)
