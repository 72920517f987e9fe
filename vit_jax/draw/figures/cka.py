"""Heatmaps of CKA between the layers of a model, or of two (arXiv 1905.00414, figure 3)."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vit_jax.draw.style import lettering, look, palette
from vit_jax.draw.style.tiles import Sheet

MOST_TICKS = 16
SIDE_IN = 4.2


@look.styled
def cka(
    values: np.ndarray,
    rows: Sequence[str],
    columns: Sequence[str] | None = None,
    *,
    models: tuple[str, str] = ("layer", "layer"),
    note: str = "",
    title: str = "Similarity of representations (CKA)",
) -> Figure:
    """CKA [rows, columns], the first row at the bottom, as in the papers; NaN is gray.

    Args:
      values: at most 1; below 0 is drawn as 0.
      rows: names of the representations, from the first layer on.
      columns: those of the other model, or checkpoint; the rows' if None.
      models: what the rows and the columns are, below and beside the axes.
      note: a line below the title.
      title: above all.
    """
    columns = rows if columns is None else columns
    high, wide = values.shape
    longest = lambda names: min(max(lettering.width_in(n, look.SMALL) for n in names), 1.2)
    left, below = longest(rows) + 0.35, longest(columns) + 0.35
    upright = _fits_upright(columns, wide)
    sheet = Sheet(
        1,
        1,
        height_by_width=min(max(high / wide, 0.35), 1.6),
        title=title,
        note=note,
        most_in=SIDE_IN,
        around=(left, 0.0, 0.45 if upright else below),
        bar=True,
    )
    axes = sheet.axes(0, 0)
    shown = np.ma.masked_invalid(np.clip(values, 0, 1))
    colours = matplotlib.colormaps[palette.HEAT].with_extremes(bad=palette.MISSING)
    axes.imshow(shown, cmap=colours, vmin=0, vmax=1, origin="lower", aspect="auto")
    axes.tick_params(length=0)
    _name(axes, "y", rows)
    _name(axes, "x", columns, rotation=0 if upright else 90)
    axes.set_ylabel(lettering.fit(models[0], sheet.tile_height, look.FONT))
    axes.set_xlabel(lettering.fit(models[1], sheet.tile, look.FONT))
    sheet.colour_bar(palette.HEAT, 0, 1, "CKA (linear; 1: the same up to rotation and scale)")
    return sheet.figure


def _shown(number: int) -> list[int]:
    """Which of so many names are written."""
    return list(range(0, number, -(-number // MOST_TICKS)))


def _fits_upright(names: Sequence[str], wide: int) -> bool:
    room = SIDE_IN / len(_shown(wide)) - 0.05
    return all(lettering.width_in(names[k], look.SMALL) <= room for k in _shown(wide))


def _name(axes: Axes, axis: str, names: Sequence[str], rotation: int = 0) -> None:
    places = _shown(len(names))
    labels = [lettering.fit(names[k], 1.2, look.SMALL) for k in places]
    set_ticks = axes.set_yticks if axis == "y" else axes.set_xticks
    set_ticks(places, labels, size=look.SMALL, rotation=rotation)
