"""Principal components, the directions in which vectors differ most, and what they draw.

Colours of patches are their first three components as red, green and blue, as in DINOv2 (arXiv
2304.07193, section 7.5): patches that the model sees alike have like colours. A map has features in
two dimensions. RankMe (arXiv 2210.02885) is how many dimensions features use, as the exponential of
an entropy.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy  # which imports its parts when they are used

from vit_jax.core.errors import UserError

_LARGE = 4  # times as many vectors as dimensions: their covariance is smaller than they are
EPSILON = 1e-7  # the paper's
MOST_EXAMPLES = 25_600  # that the paper uses
CHANNELS = 3
OUTSIDE = 1.0  # percent of the patches at either end of each component that saturate
PERPLEXITY = 30.0  # of t-SNE (scikit-learn's default); less for few examples
NEIGHBOURS = 15  # of UMAP (umap-learn's default); less for few examples
LEAST_ON_MAP = 3  # examples
_NEEDS = {"tsne": ("sklearn", "scikit-learn"), "umap": ("umap", "umap-learn")}
_INSTALL = 'pip install "vit-jax-pretraining[maps]" installs it'


class Principal(NamedTuple):
    """Principal components of vectors of D numbers."""

    mean: np.ndarray  # [D], of the vectors
    directions: np.ndarray  # [K, D], orthonormal, the one of the largest variance first
    explained: np.ndarray  # [K], the share of the total variance along each; 0 where nothing varies

    def coordinates(self, vectors: np.ndarray) -> np.ndarray:
        """[..., D] -> [..., K], float64: the vectors along the directions, from the mean."""
        return (np.asarray(vectors, np.float64) - self.mean) @ self.directions.T


def principal(vectors: np.ndarray, number: int) -> Principal:
    """The first components of vectors [N, D]: `number`, or min(N - 1, D) if that is less.

    Each direction's sign, which is arbitrary, is the one that makes its largest number positive.
    """
    x = np.asarray(vectors, np.float64)
    mean = x.mean(axis=0)
    x = x - mean
    number = max(min(number, len(x) - 1, x.shape[1]), 0)
    if len(x) > _LARGE * x.shape[1]:
        squares, vectors_ = scipy.linalg.eigh(x.T @ x)
        squares, directions = np.maximum(squares[::-1], 0), vectors_[:, ::-1].T
    else:
        _, values, directions = scipy.linalg.svd(x, full_matrices=False)
        squares = values**2
    directions = directions[:number]
    largest = np.abs(directions).argmax(axis=1)
    signs = np.sign(directions[np.arange(number), largest])
    total = max(float(np.sum(x**2)), np.finfo(np.float64).tiny)
    return Principal(mean, directions * signs[:, None], squares[:number] / total)


def rank_me(features: np.ndarray) -> float:
    """The effective rank of features [N, D], between 1 and min(N, D); of the first MOST_EXAMPLES.

    exp(-sum p ln p) with p = s / sum(s) + epsilon of the singular values s (equation 1).
    """
    matrix = np.asarray(features[:MOST_EXAMPLES], np.float64)
    values = scipy.linalg.svdvals(matrix, overwrite_a=True)
    shares = values / max(values.sum(), np.finfo(np.float64).tiny) + EPSILON
    return float(np.exp(-np.sum(shares * np.log(shares))))


def colours(features: np.ndarray) -> np.ndarray:
    """Patch features of B images [B, ..., D] -> colours [B, ..., 3] from 0 to 1, float32.

    Components and their range are those of all images together, so equal colours in two images
    mean the same. Give features after the last norm (`model.tokens(images)`): before it, a few
    tokens of high norm (arXiv 2309.16588) take the components. A component that is missing, with
    fewer than 4 patches or dimensions, or that does not vary is 0.5.
    """
    x = np.asarray(features, np.float32)
    flat = x.reshape(-1, x.shape[-1])
    along = principal(flat, CHANNELS).coordinates(flat)
    along = np.pad(along, ((0, 0), (0, CHANNELS - along.shape[1])))
    low, high = np.percentile(along, [OUTSIDE, 100 - OUTSIDE], axis=0)
    span = high - low
    # Rounding leaves a little along directions in which nothing varies.
    size = float(np.abs(flat).max(initial=0))
    varies = span > max(1e-6 * size, float(np.finfo(np.float32).tiny))
    shares = np.where(varies, (along - low) / np.where(varies, span, 1), 0.5)
    return np.clip(shares, 0, 1).astype(np.float32).reshape(*x.shape[:-1], CHANNELS)


def map_2d(features: np.ndarray, method: str) -> np.ndarray:
    """Maps features [N, D] of at least LEAST_ON_MAP examples to [N, 2], float32; near means alike.

    Args:
      features: of the examples.
      method: "pca", the first two principal components; "tsne" (van der Maaten and Hinton, 2008);
        "umap" (arXiv 1802.03426), after `check_map`. Distances between far groups mean something
        in the first alone.
    """
    return np.asarray(METHODS[method](np.asarray(features, np.float32)), np.float32)


def check_map(method: str) -> None:
    """Raises UserError for a method whose package is not installed."""
    module, package = _NEEDS.get(method, ("numpy", ""))
    if importlib.util.find_spec(module) is None:
        raise UserError(f"The map {method} needs {package}: {_INSTALL}; or take the map pca.")


def _pca(x: np.ndarray) -> np.ndarray:
    along = principal(x, 2).coordinates(x)
    return np.pad(along, ((0, 0), (0, 2 - along.shape[1])))


def _tsne(x: np.ndarray) -> np.ndarray:
    from sklearn.manifold import TSNE

    perplexity = min(PERPLEXITY, (len(x) - 1) / 3)
    return TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(x)


def _umap(x: np.ndarray) -> np.ndarray:
    from umap import UMAP

    # With a seed it runs on one thread. Its spectral start needs more examples than dimensions.
    return UMAP(
        n_neighbors=min(NEIGHBOURS, len(x) - 1),
        init="spectral" if len(x) > NEIGHBOURS else "random",
        random_state=0,
        n_jobs=1,
    ).fit_transform(x)


METHODS: dict[str, Callable[[np.ndarray], np.ndarray]] = {"pca": _pca, "tsne": _tsne, "umap": _umap}
