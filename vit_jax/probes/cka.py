"""Centred kernel alignment: how alike two representations of the same examples are.

Linear CKA (arXiv 1905.00414, section 3) of layers, checkpoints or models; 1 for representations
that differ by a rotation and a factor, whatever their widths. By the unbiased estimator of HSIC
(arXiv 2010.15327, equations 2-4), so that the value does not depend on the size of the batches.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vit_jax.core.errors import UserError

LEAST = 4  # examples in a batch: the unbiased estimator divides by n (n - 3)


class MinibatchCKA:
    """CKA between each of `rows` and each of `columns` representations, batch by batch.

    For each batch it keeps as many numbers as there are pairs; N, in `add`, is of that batch
    alone. Batches of several sizes count by their pairs of examples.

        alignment = MinibatchCKA()
        for batch in batches:
            alignment.add(layers_of(model, batch), layers_of(other, batch))
        alignment.result()
    """

    def __init__(self) -> None:
        self._pairs: np.ndarray | float = 0.0
        self._rows: np.ndarray | float = 0.0
        self._columns: np.ndarray | float = 0.0

    def add(self, rows: Sequence[np.ndarray], columns: Sequence[np.ndarray] | None = None) -> None:
        """Adds a batch: arrays [N, ...], one for each representation; columns: `rows` if None.

        UserError for a batch of fewer than 4 examples.
        """
        down = np.stack([_centred_gram(x) for x in rows])
        across = down if columns is None else np.stack([_centred_gram(x) for x in columns])
        self._pairs = self._pairs + down @ across.T
        self._rows = self._rows + np.sum(down**2, axis=1)
        self._columns = self._columns + np.sum(across**2, axis=1)

    def result(self) -> np.ndarray:
        """[rows, columns], float64; NaN for a representation that does not vary.

        About 0 for unrelated ones, where it may be below 0; at most 1.
        """
        if not isinstance(self._pairs, np.ndarray):
            raise UserError("CKA of no images: give at least 4.")
        with np.errstate(invalid="ignore"):
            scale = np.sqrt(np.multiply.outer(self._rows, self._columns))
            return np.where(scale > 0, self._pairs / np.where(scale > 0, scale, 1), np.nan)


def _centred_gram(x: np.ndarray) -> np.ndarray:
    """[N, ...] -> [N * N]: products of all pairs, so that unbiased HSICs are products of these.

    The diagonal is left out and rows and columns are centred without it (U-centring: Szekely and
    Rizzo, Annals of Statistics 42(6), 2014, equation 2.6).
    """
    x = _flat(x)
    n = len(x)
    if n < LEAST:
        raise UserError(
            f"CKA of a batch of {n} images: it takes at least {LEAST}. Give more images, or "
            "another batch size, so that the last batch is not as small."
        )
    # The mean cancels; without it, large offsets cost no digits.
    x = x - x.mean(axis=0)
    gram = x @ x.T
    np.fill_diagonal(gram, 0)
    sums = gram.sum(axis=0) / (n - 2)
    gram += sums.sum() / (n - 1) - sums[:, None] - sums[None, :]
    np.fill_diagonal(gram, 0)
    return gram.ravel()


def _flat(x: np.ndarray) -> np.ndarray:
    x = np.asarray(x, np.float64)
    return x.reshape(len(x), -1)
