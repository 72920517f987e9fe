"""Filters of the first layer (arXiv 2010.11929, figure 7 left)."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.figure import Figure

from vit_jax.draw.style.look import styled
from vit_jax.draw.style.tiles import Sheet

COLUMNS = 7
TINY = 1e-30  # a filter of zeros is gray


@styled
def filters(
    pictures: np.ndarray, explained: np.ndarray, *, what: str = "patch projection"
) -> Figure:
    """Principal components [K, P, P, 3], with the share of variance [K] of each below it.

    Gray is 0; each is scaled by its own largest number. `what`: the layer.
    """
    number, height, width, _ = pictures.shape
    columns = min(COLUMNS, number)
    sheet = Sheet(
        math.ceil(number / columns),
        columns,
        height_by_width=height / width,
        title=f"Principal components of the {what}",
        note=f"{number} components of {height} x {width} px, {np.sum(explained):.1%} of the "
        "variance; below each its share",
        lines=1,
        most_in=0.9,
    )
    for k, picture in enumerate(pictures):
        row, column = divmod(k, columns)
        size = max(float(np.abs(picture).max()), TINY)
        sheet.show(row, column, 0.5 + picture / (2 * size))
        sheet.caption(row, column, f"{explained[k]:.1%}")
    return sheet.figure
