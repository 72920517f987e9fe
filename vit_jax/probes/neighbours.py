"""k nearest neighbours on frozen features, by the protocol of DINO (arXiv 2104.14294, section 4.1).

The k training features of the largest cosine similarity s vote for their classes, each with weight
exp(s / temperature). There, k = 20 and a temperature of 0.07 did best.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.core.errors import UserError

_QUERIES = 1024  # of one product


class Nearest(NamedTuple):
    """The nearest features of Q queries, nearest first.

    Attributes:
      indices: [Q, k] among the features.
      similarities: [Q, k], cosines, float32.
    """

    indices: np.ndarray
    similarities: np.ndarray


def nearest(features: np.ndarray, places: Sequence[int], k: int) -> Nearest:
    """Finds the k features of [N, D] most similar, by cosine, to each of those at `places` [Q].

    A feature is not its own neighbour. Among equals the first; k is less than N.
    """
    unit = _normalised(features)
    similarity = unit[places] @ unit.T
    similarity[np.arange(len(places)), places] = -np.inf
    indices = np.argsort(-similarity, axis=1, kind="stable")[:, :k]
    return Nearest(indices, np.take_along_axis(similarity, indices, axis=1))


def accuracies(
    train: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray],
    *,
    num_classes: int,
    k: Sequence[int],
    temperature: float,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> dict[int, float]:
    """The share of `test` that is classified rightly, by k; each set is features and labels.

    Computed on the first device, which holds the training features: 4 bytes x N x D. UserError for
    a k that exceeds their number.
    """
    if max(k) > len(train[1]) or min(k) < 1:
        raise UserError(f"k={max(k)} neighbours of {len(train[1]):,} examples: give a smaller k.")
    if not temperature > 0:
        raise UserError(f"temperature={temperature:g}: give one above 0.")
    stored, classes = jax.device_put((_normalised(train[0]), np.asarray(train[1], np.int32)))
    vote = jax.jit(functools.partial(_vote, k=tuple(k), num_classes=num_classes))
    right = np.zeros(len(k), np.int64)
    features, labels = test
    for start in range(0, len(labels), _QUERIES):
        part = np.asarray(features[start : start + _QUERIES])
        padded = np.pad(_normalised(part), ((0, _QUERIES - len(part)), (0, 0)))
        votes = np.asarray(vote(stored, classes, padded, temperature))[:, : len(part)]
        right += (votes == labels[start : start + _QUERIES]).sum(axis=1)
        progress(min(start + _QUERIES, len(labels)), len(labels))
    return {each: float(n / len(labels)) for each, n in zip(k, right, strict=True)}


def _vote(
    stored: jax.Array,
    classes: jax.Array,
    queries: jax.Array,
    temperature: float,
    *,
    k: tuple[int, ...],
    num_classes: int,
) -> jax.Array:
    """Classes by k and query, [len(k), Q]; among equal votes the lowest class."""
    similarity = jnp.matmul(queries, stored.T, precision="highest")
    similarity, nearest = jax.lax.top_k(similarity, max(k))
    # Relative to the nearest one, so that no weight overflows at low temperatures.
    weights = jnp.exp((similarity - similarity[:, :1]) / temperature)
    cast = jax.nn.one_hot(classes[nearest], num_classes) * weights[:, :, None]
    return jnp.stack([cast[:, :each].sum(axis=1).argmax(axis=1) for each in k])


def _normalised(features: np.ndarray) -> np.ndarray:
    x = np.asarray(features, np.float32)
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
