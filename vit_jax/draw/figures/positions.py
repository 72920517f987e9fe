"""Similarity of position embeddings, a grid of grids (arXiv 2010.11929, figure 7 centre)."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from vit_jax.draw.style import lettering, look, palette
from vit_jax.draw.style.tiles import Sheet

MOST = 16  # grids in a row: with more, each is too small to be read
GRIDS_IN = 5.0  # width of all
LABELS_IN = (0.4, 0.0, 0.4)  # space for labels on the left and below


@look.styled
def positions(
    similarity: np.ndarray, *, title: str = "Similarity of position embeddings", note: str = ""
) -> Figure:
    """Cosines [R, C, R, C]: a grid for each position, of its similarity with all others.

    Of more than 16 rows or columns evenly spaced ones are shown, with their numbers. `note`: a
    line below the title, for the number that says how well rows and columns show.
    """
    rows, columns = similarity.shape[:2]
    shown = [_spread(n) for n in (rows, columns)]
    gap = max(1, round(max(rows, columns) / 14))
    mosaic = np.full(
        (len(shown[0]) * (rows + gap) - gap, len(shown[1]) * (columns + gap) - gap), np.nan
    )
    for i, row in enumerate(shown[0]):
        for j, column in enumerate(shown[1]):
            top, left = i * (rows + gap), j * (columns + gap)
            mosaic[top : top + rows, left : left + columns] = similarity[row, column]
    sheet = Sheet(
        1,
        1,
        height_by_width=mosaic.shape[0] / mosaic.shape[1],
        title=title,
        note=note,
        most_in=GRIDS_IN,
        around=LABELS_IN,
        bar=True,
    )
    axes = sheet.axes(0, 0)
    axes.imshow(mosaic, aspect="auto", cmap=palette.SIGNED, vmin=-1, vmax=1)
    axes.tick_params(length=0)
    axes.set_yticks(*_ticks(shown[0], rows, gap), size=look.SMALL)
    axes.set_xticks(*_ticks(shown[1], columns, gap), size=look.SMALL)
    for set_label, what, room in (
        (axes.set_xlabel, "column", sheet.tile),
        (axes.set_ylabel, "row", sheet.tile_height),
    ):
        label = f"{what} of the input patch"
        set_label(label if lettering.width_in(label, look.FONT) <= room else what)
    sheet.colour_bar(palette.SIGNED, -1, 1, "cosine similarity")
    return sheet.figure


def _spread(number: int) -> list[int]:
    """Indices of at most MOST of so many, the first and the last among them."""
    return sorted({int(k) for k in np.linspace(0, number - 1, min(number, MOST)).round()})


def _ticks(shown: list[int], size: int, gap: int) -> tuple[list[float], list[str]]:
    places = [k * (size + gap) + (size - 1) / 2 for k in range(len(shown))]
    return places, [str(k + 1) for k in shown]
