"""Features in two dimensions, so that they can be drawn as a map."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import numpy as np

from vit_jax.core.errors import UserError, nearest
from vit_jax.probes.principal import principal

PERPLEXITY = 30.0  # of t-SNE (scikit-learn's default); less for few examples
NEIGHBOURS = 15  # of UMAP (umap-learn's default); less for few examples
LEAST = 3  # examples
_NEEDS = {"tsne": ("sklearn", "scikit-learn"), "umap": ("umap", "umap-learn")}
_INSTALL = 'pip install "vit-jax-pretraining[maps]" installs it'


def map_2d(features: np.ndarray, method: str = "pca", *, seed: int = 0) -> np.ndarray:
    """[N, D] -> [N, 2], float32; near means alike.

    Args:
      features: of at least 3 examples.
      method: "pca", the first two principal components; "tsne" (van der Maaten and Hinton, 2008);
        "umap" (arXiv 1802.03426). Distances between far groups mean something in the first alone.
      seed: of "tsne" and "umap".

    UserError for an unknown method, for one whose package is not installed, and for too few
    examples.
    """
    check(method)
    x = np.asarray(features, np.float32)
    if len(x) < LEAST:
        raise UserError(f"A map of {len(x)} images: it takes at least {LEAST}.")
    return np.asarray(METHODS[method](x, seed), np.float32)


def check(method: str) -> None:
    """UserError for an unknown method, or one whose package is not installed."""
    if method not in METHODS:
        raise UserError(f"There is no map {method!r}. {nearest(method, METHODS)}")
    module, package = _NEEDS.get(method, ("numpy", ""))
    if importlib.util.find_spec(module) is None:
        raise UserError(f"The map {method} needs {package}: {_INSTALL}; or take the map pca.")


def _pca(x: np.ndarray, seed: int) -> np.ndarray:
    del seed
    along = principal(x, 2).coordinates(x)
    return np.pad(along, ((0, 0), (0, 2 - along.shape[1])))


def _tsne(x: np.ndarray, seed: int) -> np.ndarray:
    from sklearn.manifold import TSNE

    perplexity = min(PERPLEXITY, (len(x) - 1) / 3)
    return TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(x)


def _umap(x: np.ndarray, seed: int) -> np.ndarray:
    from umap import UMAP

    # With a seed it runs on one thread. Its spectral start needs more examples than dimensions.
    return UMAP(
        n_neighbors=min(NEIGHBOURS, len(x) - 1),
        init="spectral" if len(x) > NEIGHBOURS else "random",
        random_state=seed,
        n_jobs=1,
    ).fit_transform(x)


METHODS: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "pca": _pca,
    "tsne": _tsne,
    "umap": _umap,
}
