"""Mean attention distance (arXiv 2010.11929, section 4.5 and figure 7): how far heads look."""

import numpy as np

from vit_jax.probes.attention.arrays import Array


def patch_distances(grid: tuple[int, int], pixels_per_patch: tuple[float, float]) -> np.ndarray:
    """Distances between the centres of all patches in pixels, [P, P] float64; row by row.

    Args:
      grid: (rows, columns), P of them.
      pixels_per_patch: (height, width): the image's size over the grid.
    """
    rows, columns = np.indices(grid).reshape(2, -1, 1).astype(np.float64)
    height, width = pixels_per_patch
    return np.hypot((rows - rows.T) * height, (columns - columns.T) * width)


def mean_distance(weights: Array, distances: Array) -> Array:
    """Weights among patches [..., P, P] and distances [P, P] -> [...]: pixels.

    For each query the mean of the distances to all patches, weighted by their attention, then the
    mean over queries. What a query gives to a class token or to registers has no distance: the
    weights of the patches are taken relative to their own sum. A query that gives them nothing
    counts as 0.
    """
    sums = weights.sum(axis=-1)
    weighted = (weights * distances).sum(axis=-1)
    return (weighted / (sums + (sums == 0))).mean(axis=-1)
