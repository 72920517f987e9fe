"""How a model develops over the checkpoints of its training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from vit_jax.draw.style import lettering, look, palette
from vit_jax.draw.style.look import displayed
from vit_jax.draw.style.tiles import Sheet

COLUMNS = 2  # of curves
MOST_CURVES = 7  # in one panel with a name each


class Quantity(NamedTuple):
    """A number, or several, of each checkpoint.

    Attributes:
      values: [T], or [T, K] for K curves.
      unit: "pixels", "%"; "" for a pure number.
      names: of the K curves; without names they are layers, coloured from the first to the last.
    """

    values: np.ndarray
    unit: str = ""
    names: Sequence[str] = ()


@look.styled
def curves(
    steps: Sequence[int],
    quantities: Mapping[str, Quantity],
    *,
    title: str = "Development over training",
) -> Figure:
    """One panel for each quantity, over the steps of T checkpoints."""
    columns = min(COLUMNS, len(quantities))
    rows = math.ceil(len(quantities) / columns)
    figure = look.blank(3.6 * columns + 0.2, 2.5 * rows + 0.35)
    figure.suptitle(title, x=0.02, ha="left")
    for k, (name, quantity) in enumerate(quantities.items()):
        axes = figure.add_subplot(rows, columns, k + 1)
        values = np.asarray(quantity.values).reshape(len(steps), -1)
        number = values.shape[1]
        named = bool(quantity.names) and number <= MOST_CURVES
        for j, curve in enumerate(values.T):
            colour, marker = palette.series(j) if named else (_of_layer(j, number), "o")
            label = lettering.fit(quantity.names[j], 1.2, look.SMALL) if named else None
            axes.plot(steps, curve, color=colour, marker=marker, ms=3.5, lw=1.2, label=label)
        unit = f" ({quantity.unit})" if quantity.unit else ""
        axes.set_ylabel(lettering.fit(f"{name}{unit}", 2.2, look.FONT, lines=2))
        axes.set_xlabel("step")
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: look.short(x)))
        if named:
            axes.legend(loc="best")
        elif number > 1:
            note = f"{number} layers, from the first (dark) to the last (light)"
            axes.set_title(note, loc="left", size=look.SMALL, color=palette.MUTED)
    return figure


@look.styled
def pictures(
    steps: Sequence[int],
    rows: Mapping[str, Sequence[np.ndarray] | np.ndarray],
    *,
    title: str = "Development over training",
    columns: int = 8,
) -> Figure:
    """A row of pictures for each name, one for each of T checkpoints, evenly chosen ones of many.

    Args:
      steps: of the T checkpoints.
      rows: T pictures each, [H, W, 3] or gray [H, W], all of the same shape.
      title: above all.
      columns: at most.
    """
    chosen = np.linspace(0, len(steps) - 1, min(columns, len(steps))).round().astype(int)
    height, width = next(iter(rows.values()))[0].shape[:2]
    sheet = Sheet(
        len(rows),
        len(chosen),
        height_by_width=height / width,
        title=title,
        lines=1,
        headings=True,
        most_in=1.4,
    )
    for column, k in enumerate(chosen):
        sheet.heading(column, f"step {look.short(steps[k])}")
    for row, (name, shown) in enumerate(rows.items()):
        for column, k in enumerate(chosen):
            sheet.show(row, column, displayed(shown[k]))
        sheet.caption(row, 0, name, over=len(chosen))
    return sheet.figure


def _of_layer(index: int, number: int) -> tuple[float, ...]:
    """A colour of viridis; its lightest end cannot be seen on white."""
    return look.colour(palette.SIGNED, 0.88 * index / max(number - 1, 1))
