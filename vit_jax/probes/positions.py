"""What position embeddings know of the image's grid (arXiv 2010.11929, figures 7 and 10)."""

from __future__ import annotations

import numpy as np


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
    """How far embeddings [R, C, D] are a vector of the row plus one of the column, 0 to 1.

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
