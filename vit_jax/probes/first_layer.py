"""Filters of the first layer, and the image's grid in position embeddings.

The principal components of its filters, as in figure 7 (left) of arXiv 2010.11929, which shows the
first 28 of ViT-L/32; the similarity of positions, as in its figures 7 and 10.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from vit_jax.core.errors import UserError
from vit_jax.probes.principal import principal

NUMBER = 28  # the paper's
# Parameters that are filters of the image's colours, and what they are. The first one that a model
# has is its first layer: a hybrid has patches too, but of a feature map.
KERNELS = {
    "patches/kernel": "patch projection",
    "patches/resnet/root/conv/kernel": "first convolution of the ResNet",
    "resnet/root/conv/kernel": "first convolution of the ResNet",
    "root/conv/kernel": "first convolution",
}


class FirstLayer(NamedTuple):
    """The kernel of a model's first layer."""

    kernel: np.ndarray  # [P, P, 3, D], as it is used: a ResNet's is standardised
    what: str  # "patch projection", "first convolution of the ResNet" or "first convolution"


class Filters(NamedTuple):
    """Principal components of D filters."""

    pictures: np.ndarray  # [K, P, P, 3], each of norm 1; the sign is arbitrary
    explained: np.ndarray  # [K], the share of the filters' variance


def first_layer(params: Mapping[str, np.ndarray]) -> FirstLayer:
    """The first layer of a model, from its parameters by name ("patches/kernel")."""
    for name, what in KERNELS.items():
        if name in params:
            kernel = np.asarray(params[name], np.float32)
            # Convolutions of ResNets divide their weights by their deviation at every use.
            return FirstLayer(_standardised(kernel) if "resnet" in name else kernel, what)
    raise UserError(f"The weights have no filters of colours, none of {', '.join(KERNELS)}.")


def components(kernel: np.ndarray) -> Filters:
    """The first components of D filters [P, P, 3, D]; fewer if D - 1 or 3 P^2 is less.

    The filters' mean is subtracted first.
    """
    *shape, width = kernel.shape
    found = principal(kernel.reshape(-1, width).T, NUMBER)
    return Filters(found.directions.reshape(-1, *shape), found.explained)


def _standardised(kernel: np.ndarray) -> np.ndarray:
    """Mean 0 and variance 1 for each output (arXiv 1903.10520)."""
    inputs = (0, 1, 2)
    centred = kernel - kernel.mean(axis=inputs, keepdims=True)
    deviation = np.sqrt(np.mean(centred**2, axis=inputs, keepdims=True))
    return centred / np.maximum(deviation, 1e-5)


def similarity(table: np.ndarray) -> np.ndarray:
    """Cosine of each position with every other: [R, C, D] -> [R, C, R, C], float32.

    `table` is that of the patches alone, row by row, without a class token. A position without an
    embedding (zeros) is similar to none: 0.
    """
    rows, columns, width = table.shape
    x = np.asarray(table, np.float64).reshape(-1, width)
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    unit = x / np.where(norms > 0, norms, 1)
    return (unit @ unit.T).astype(np.float32).reshape(rows, columns, rows, columns)


def grid_share(table: np.ndarray) -> float:
    """Returns how far embeddings [R, C, D] are the sum of a row's and a column's vector, 0 to 1.

    The share of the variance over positions that the best such sum explains, which in this
    balanced table is that of the means of rows and of columns (two-way analysis of variance
    without interaction). 1 for embeddings made of both (`sincos_2d`, `learned_2d`);
    `chance(grid)` is expected of random ones. NaN if all positions are equal.
    """
    x = np.asarray(table, np.float64)
    x = x - x.mean(axis=(0, 1))
    rows, columns = x.mean(axis=1), x.mean(axis=0)
    explained = len(columns) * np.sum(rows**2) + len(rows) * np.sum(columns**2)
    total = np.sum(x**2)
    return float(explained / total) if total > 0 else float("nan")


def chance(grid: tuple[int, int]) -> float:
    """The `grid_share` expected of independent random embeddings: degrees of freedom's share.

    With R rows and C columns (R + C - 2) / (R C - 1); 1 for a single row or column, where every
    table is such a sum.
    """
    rows, columns = grid
    return (rows + columns - 2) / max(rows * columns - 1, 1) if rows * columns > 1 else 1.0
