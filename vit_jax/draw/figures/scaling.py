"""Performance against examples and compute, as in arXiv 2010.11929, figures 4 and 5."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from vit_jax.draw.style import look, palette

_HEIGHT_IN = 4.4


class Series(NamedTuple):
    """The points of a model.

    Attributes:
      name: the model's, for the legend.
      family: models of one family have one colour.
      x, y: [n] each.
      line: [m] indices of the points that a line joins.
    """

    name: str
    family: str
    x: np.ndarray
    y: np.ndarray
    line: np.ndarray


class Law(NamedTuple):
    """A fitted curve over x [N].

    Attributes:
      name: the model's, or of all of them.
      y, low, high: the curve and its interval [N]; NaN: none.
      extrapolated: [N] bool.
    """

    name: str
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray
    high: np.ndarray
    extrapolated: np.ndarray


@look.styled
def scaling(
    series: Sequence[Series],
    laws: Sequence[Law] = (),
    *,
    x_label: str,
    y_label: str,
    title: str,
    percent: bool = False,
    frontier: tuple[np.ndarray, np.ndarray] | None = None,
) -> Figure:
    """Points of models over a logarithmic axis, and laws, dashed where they are extrapolated.

    Colours are those of families where there are several, else of models; no two models have the
    same marker in the same colour.

    Args:
      series: the models.
      laws: fitted to them.
      x_label, y_label: with the unit.
      title: above all.
      percent: y is a share, shown in percent.
      frontier: (x, y) of the best points for their compute, in ascending order, which a stepped
        line joins.
    """
    figure = look.blank(look.WIDTH_IN, _HEIGHT_IN)
    figure.suptitle(title, x=0.02, ha="left")
    axes = figure.add_subplot()
    looks = _looks(series)
    for law in laws:
        _draw_law(axes, law, *looks.get(law.name, (palette.MUTED, "")))
    if any(law.name in looks for law in laws):  # one entry for all: each ends in its marker
        axes.plot([], [], color=palette.MUTED, lw=1.4, label="law of a model")
    for each in series:
        _draw_points(axes, each, *looks[each.name])
    if frontier is not None:
        axes.step(*frontier, where="post", color="black", lw=0.9, label="compute-optimal", zorder=1)
    axes.set_xscale("log")
    look.plain_log_ticks(axes.xaxis)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    if percent:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{100 * y:g} %"))
    _keep_to_points(axes, series, laws)
    if any(law.extrapolated.any() for law in laws):
        banded = any(np.isfinite(law.low).all() for law in laws)
        note = "dashed: extrapolated" + ("; bands: 90 % intervals of the fit" if banded else "")
        axes.set_title(note, loc="left", size=look.SMALL, color=palette.MUTED)
    if series or laws:
        figure.legend(loc="outside right upper")
    return figure


def _looks(series: Sequence[Series]) -> dict[str, tuple[str, str]]:
    """(colour, marker) of each model, by name."""
    families = list(dict.fromkeys(each.family for each in series))
    if len(families) < 2:
        return {each.name: palette.series(i) for i, each in enumerate(series)}
    # Markers go on from family to family, so that these differ without colour too.
    return {
        each.name: (
            palette.series(families.index(each.family))[0],
            palette.MARKERS[i % len(palette.MARKERS)],
        )
        for i, each in enumerate(series)
    }


def _draw_points(axes: Axes, each: Series, colour: str, marker: str) -> None:
    axes.plot(each.x[each.line], each.y[each.line], color=colour, lw=1.2, alpha=0.7, zorder=2)
    name = f"{each.name} ({each.family})"
    axes.plot(each.x, each.y, marker, color=colour, mec="white", mew=0.6, label=name, zorder=3)


def _draw_law(axes: Axes, law: Law, colour: str, marker: str) -> None:
    """The law; that of one model ends in the model's marker, empty."""
    inside, beyond = ~law.extrapolated, law.extrapolated.copy()
    if inside.any():
        beyond[np.flatnonzero(inside)[-1]] = True  # the lines meet
    name = None if marker else f"law of {law.name}"
    axes.plot(law.x[inside], law.y[inside], color=colour, lw=1.4, zorder=1.5, label=name)
    axes.plot(law.x[beyond], law.y[beyond], color=colour, lw=1.4, zorder=1.5, dashes=(4, 3))
    if marker:
        axes.plot(law.x[-1], law.y[-1], marker, color=colour, mfc="white", ms=5, zorder=1.6)
    if np.isfinite(law.low).all():
        axes.fill_between(law.x, law.low, law.high, color=colour, alpha=0.13, lw=0, zorder=1)


def _keep_to_points(axes: Axes, series: Sequence[Series], laws: Sequence[Law]) -> None:
    """The range of y that points and laws need; wide intervals are cut off."""
    needed = [each.y for each in series] + [each.y for each in laws]
    if not needed:
        return
    values = np.concatenate(needed)
    low, high = float(values.min()), float(values.max())
    room = 0.08 * (high - low) or 0.05 * abs(high) or 0.05
    axes.set_ylim(low - room, high + room)
