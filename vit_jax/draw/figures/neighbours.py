"""Images and those that are nearest to them in feature space."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from vit_jax.draw.style.look import displayed, styled
from vit_jax.draw.style.tiles import Sheet


@styled
def neighbours(
    photos: np.ndarray,
    queries: Sequence[int],
    indices: np.ndarray,
    similarities: np.ndarray,
    names: Sequence[str],
    *,
    title: str = "Nearest neighbours in feature space",
) -> Figure:
    """Each query, and behind it its nearest images with their similarity.

    Args:
      photos: [N, H, W, 3], uint8 or from 0 to 1.
      queries: indices of Q of them.
      indices: [Q, k] of their neighbours among the photos, nearest first.
      similarities: [Q, k], cosines.
      names: of all N.
      title: above all.
    """
    k = indices.shape[1]
    captions = [
        [f"{similarity:.3f}\n{names[i]}" for i, similarity in zip(row, values, strict=True)]
        for row, values in zip(indices, similarities, strict=True)
    ]
    sheet = Sheet(
        len(queries),
        1 + k,
        height_by_width=photos.shape[1] / photos.shape[2],
        title=title,
        note="the cosine similarity of features below each",
        lines=3,
        captions=([*(names[q] for q in queries), *(text for row in captions for text in row)], 1),
        headings=True,
        gaps=(1,),
        most_in=1.3,
    )
    sheet.heading(0, "image")
    sheet.heading(1, "nearest", over=k)
    for row, query in enumerate(queries):
        sheet.show(row, 0, displayed(photos[query]))
        sheet.caption(row, 0, names[query])
        for column, index in enumerate(indices[row], start=1):
            sheet.show(row, column, displayed(photos[index]))
            sheet.caption(row, column, captions[row][column - 1])
    return sheet.figure
