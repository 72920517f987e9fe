"""Principal components: the directions in which vectors differ most."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.linalg

_LARGE = 4  # times as many vectors as dimensions: their covariance is smaller than they are


class Principal(NamedTuple):
    """Principal components of vectors of D numbers.

    Attributes:
      mean: [D], of the vectors.
      directions: [K, D], orthonormal, the one of the largest variance first.
      explained: [K], the share of the total variance along each; 0 where nothing varies.
    """

    mean: np.ndarray
    directions: np.ndarray
    explained: np.ndarray

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
