"""Nearest neighbours by the cosine of features: similar images, copies, and classes by a vote.

The vote is the protocol of DINO (arXiv 2104.14294, section 3.2): the k training features of the
largest cosine similarity s vote for their classes, each with weight exp(s / temperature). There,
k = 20 did best; the temperature of its code is 0.07.
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
_ROWS = 4096  # of a block: a product of two takes 64 MiB


class Nearest(NamedTuple):
    """The nearest features of Q queries, nearest first."""

    indices: np.ndarray  # [Q, k] among the features
    similarities: np.ndarray  # [Q, k], cosines, float32


def nearest(features: np.ndarray, places: Sequence[int], k: int) -> Nearest:
    """Finds the k features of [N, D] most similar, by cosine, to each of those at `places` [Q].

    A feature is not its own neighbour. Among equals the first; k is less than N.
    """
    unit = _normalised(features)
    similarity = unit[places] @ unit.T
    similarity[np.arange(len(places)), places] = -np.inf
    indices = np.argsort(-similarity, axis=1, kind="stable")[:, :k]
    return Nearest(indices, np.take_along_axis(similarity, indices, axis=1))


def most_similar(
    queries: np.ndarray,
    features: np.ndarray,
    k: int,
    *,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> Nearest:
    """Finds the k features of [N, D] most similar, by cosine, to each of the queries [Q, D].

    Exact; among equals the first. Besides the two it takes 4 bytes x Q x (4096 + D).
    """
    unit = jnp.asarray(_normalised(queries))
    found = Nearest(np.zeros((len(unit), 0), np.int32), np.zeros((len(unit), 0), np.float32))
    for start in range(0, len(features), _ROWS):
        block = features[start : start + _ROWS]
        found = Nearest(*_merged(unit, block, start, *found, k=min(k, start + len(block))))
        progress(start + len(block), len(features))
    return Nearest(*map(np.asarray, found))


@functools.partial(jax.jit, static_argnames="k")
def _merged(
    queries: jax.Array,
    block: jax.Array,
    start: int,
    indices: jax.Array,
    similarities: jax.Array,
    *,
    k: int,
) -> tuple[jax.Array, jax.Array]:
    """The k nearest of those that were found, and of a block whose first row is `start`."""
    rows = jnp.broadcast_to(start + jnp.arange(len(block)), (len(queries), len(block)))
    indices = jnp.concatenate([indices, rows], axis=1)
    similarities = jnp.concatenate([similarities, _cosines(queries, block)], axis=1)
    similarities, nearest = jax.lax.top_k(similarities, k)
    return jnp.take_along_axis(indices, nearest, axis=1), similarities


class Copies(NamedTuple):
    """Rows that are copies of earlier ones, M of N."""

    rows: np.ndarray  # [M], rising
    originals: np.ndarray  # [M], the rows that they are copies of; none of these is a copy
    similarities: np.ndarray  # [M], cosines of the two


def copies(
    features: np.ndarray,
    threshold: float,
    *,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> Copies:
    """Finds the rows of [N, D] whose cosine with an earlier row is at least `threshold`.

    A row stays unless it is a copy of one that stays, of these of the most similar one: so each end
    of a chain stays whose ends are not alike. All pairs of rows that stay are compared, in blocks.
    """
    number = len(features)
    best, original = np.full(number, -np.inf, np.float32), np.zeros(number, np.int64)
    for start in range(0, number, _ROWS):
        block = features[start : start + _ROWS]
        mine = slice(start, start + len(block))
        for before in range(0, start, _ROWS):
            there = slice(before, before + _ROWS)
            largest, at = _largest(block, features[there], best[there] < threshold)
            closer = np.asarray(largest) > best[mine]
            best[mine][closer] = largest[closer]
            original[mine][closer] = before + np.asarray(at)[closer]
        # Within the block one row depends on the one before.
        cosines = np.tril(np.asarray(_cosines(block, block)), -1)
        for row in np.flatnonzero((cosines >= threshold).any(axis=1)).tolist():
            stays = best[mine][:row] < threshold
            at = int(np.argmax(np.where(stays, cosines[row, :row], -np.inf)))
            if stays[at] and cosines[row, at] > best[start + row]:
                best[start + row], original[start + row] = cosines[row, at], start + at
        progress((start + len(block)) ** 2, number**2)
    rows = np.flatnonzero(best >= threshold)
    return Copies(rows, original[rows], best[rows])


@jax.jit
def _largest(block: jax.Array, others: jax.Array, stays: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The largest cosine of each row of [B, D] with those of [C, D] that stay, and which it is."""
    cosines = jnp.where(stays, _cosines(block, others), -jnp.inf)
    return cosines.max(axis=1), cosines.argmax(axis=1)


@jax.jit
def _cosines(one: jax.Array, other: jax.Array) -> jax.Array:
    """[Q, D], [N, D] of any length and dtype -> [Q, N], float32."""
    one, other = one.astype(jnp.float32), other.astype(jnp.float32)
    one, other = (
        x / jnp.maximum(jnp.linalg.norm(x, axis=1, keepdims=True), 1e-12) for x in (one, other)
    )
    return jnp.matmul(one, other.T, precision="highest")


def accuracies(
    train: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray],
    *,
    num_classes: int,
    k: Sequence[int],
    temperature: float,
) -> dict[int, float]:
    """The share of `test` that is classified rightly, by k; each set is features and labels.

    Computed on the first device, which holds the training features: 4 bytes x N x D. UserError for
    a k that exceeds their number.
    """
    if max(k) > len(train[1]) or min(k) < 1:
        raise UserError(f"k={max(k)} neighbours of {len(train[1]):,} examples: give a smaller k.")
    stored, classes = jax.device_put((_normalised(train[0]), np.asarray(train[1], np.int32)))
    vote = jax.jit(functools.partial(_vote, k=tuple(k), num_classes=num_classes))
    right = np.zeros(len(k), np.int64)
    features, labels = test
    for start in range(0, len(labels), _QUERIES):
        part = np.asarray(features[start : start + _QUERIES])
        padded = np.pad(_normalised(part), ((0, _QUERIES - len(part)), (0, 0)))
        votes = np.asarray(vote(stored, classes, padded, temperature))[:, : len(part)]
        right += (votes == labels[start : start + _QUERIES]).sum(axis=1)
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
    query, none = jnp.arange(len(queries))[:, None], jnp.zeros((len(queries), num_classes))
    # Added to classes one by one: [Q, k, C] of 21,843 classes would fill memory.
    votes = (none.at[query, classes[nearest[:, :n]]].add(weights[:, :n]) for n in k)
    return jnp.stack([x.argmax(axis=1) for x in votes])


def _normalised(features: np.ndarray) -> np.ndarray:
    x = np.asarray(features, np.float32)
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
