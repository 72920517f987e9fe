"""Centred kernel alignment: how alike two representations of the same examples are.

Linear CKA (arXiv 1905.00414, section 3) of layers, checkpoints or models; 1 for representations
that differ by a rotation and a factor, whatever their widths. By the unbiased estimator of HSIC
(arXiv 2010.15327, equations 3-4), so that the value does not depend on how many examples there are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

LEAST = 4  # examples: the unbiased estimator divides by n (n - 3)


def linear_cka(
    rows: Sequence[np.ndarray], columns: Sequence[np.ndarray] | None = None
) -> np.ndarray:
    """[rows, columns], float64: CKA between representations, arrays [N, ...].

    `columns` are the rows if None. About 0 for unrelated ones, where it may be below 0; at most 1;
    NaN for one that does not vary.
    """
    down = np.stack([_centred_gram(x) for x in rows])
    across = down if columns is None else np.stack([_centred_gram(x) for x in columns])
    scale = np.sqrt(np.multiply.outer(*(np.sum(x**2, axis=1) for x in (down, across))))
    return np.where(scale > 0, down @ across.T / np.where(scale > 0, scale, 1), np.nan)


def _centred_gram(x: np.ndarray) -> np.ndarray:
    """[N, ...] -> [N * N]: products of all pairs, so that unbiased HSICs are products of these.

    The diagonal is left out and rows and columns are centred without it (U-centring: Szekely and
    Rizzo, Annals of Statistics 42(6), 2014, equation 2.6).
    """
    x = np.asarray(x, np.float64).reshape(len(x), -1)
    n = len(x)
    assert n >= LEAST
    # The mean cancels; without it, large offsets cost no digits.
    x = x - x.mean(axis=0)
    gram = x @ x.T
    np.fill_diagonal(gram, 0)
    sums = gram.sum(axis=0) / (n - 2)
    gram += sums.sum() / (n - 1) - sums[:, None] - sums[None, :]
    np.fill_diagonal(gram, 0)
    return gram.ravel()
