"""Features of patches as colours, beside their images (arXiv 2304.07193, figure 1)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from vit_jax.draw.style.look import displayed, styled
from vit_jax.draw.style.tiles import Sheet

PAIRS = 3  # a photo and its features, in a row


@styled
def features(
    photos: np.ndarray,
    colours: np.ndarray,
    names: Sequence[str],
    *,
    title: str = "Features of patches as colours",
    note: str = "the first three principal components, the same in all images, as red, green, blue",
) -> Figure:
    """Each photo [B, H, W, 3] and the colours of its patches [B, R, C, 3], from 0 to 1."""
    across = min(PAIRS, len(photos))
    sheet = Sheet(
        math.ceil(len(photos) / across),
        2 * across,
        height_by_width=photos.shape[1] / photos.shape[2],
        title=title,
        note=note,
        lines=2,
        captions=(names, 2),
        gaps=range(2, 2 * across, 2),
    )
    for k, photo in enumerate(photos):
        row, left = k // across, k % across * 2
        sheet.show(row, left, displayed(photo))
        sheet.show(row, left + 1, displayed(colours[k]))
        sheet.caption(row, left, names[k], over=2)
    return sheet.figure
