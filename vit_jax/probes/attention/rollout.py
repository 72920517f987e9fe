"""Attention rollout (arXiv 2005.00928, section 3; 2010.11929, appendix D.7).

All functions take NumPy's arrays or JAX's, and return the same.
"""

from collections.abc import Sequence

from vit_jax.probes.attention.arrays import Array, namespace


def with_residual(weights: Array) -> Array:
    """[..., H, N, N], rows that sum to 1 -> [..., N, N], likewise: A = (W + I) / 2.

    W is the mean over heads; I stands for the residual connection, which adds the token itself.
    """
    mean = weights.mean(axis=-3)
    return (mean + namespace(mean).eye(mean.shape[-1], dtype=mean.dtype)) / 2


def rollout(layers: Sequence[Array] | Array) -> Array:
    """A_l = `with_residual` of L layers, [N, N] each, first layer first -> A_L ... A_2 A_1, [N, N].

    Row i is how much token i after the last layer has taken from each token that entered the first;
    it sums to 1. Any leading axes of the layers are batch axes.
    """
    first, *rest = layers
    for each in rest:
        first = namespace(first).matmul(each, first)
    return first


def centre_of_mass(patches: Array) -> Array:
    """Maps [..., rows, columns], not negative -> [..., 2]: (x, y) as fractions of the image.

    (0, 0) is the upper left corner, (1, 1) the lower right one. A map of zeros has its centre in
    the middle.
    """
    np = namespace(patches)
    rows, columns = patches.shape[-2:]
    total = patches.sum(axis=(-2, -1))
    y = (patches.sum(axis=-1) * ((np.arange(rows) + 0.5) / rows)).sum(axis=-1)
    x = (patches.sum(axis=-2) * ((np.arange(columns) + 0.5) / columns)).sum(axis=-1)
    empty = total == 0
    divisor = np.where(empty, 1, total)
    return np.stack([np.where(empty, 0.5, x / divisor), np.where(empty, 0.5, y / divisor)], axis=-1)
