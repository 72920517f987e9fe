"""What all figures have in common: their style, and their PNG.

Figures are drawn without pyplot and its global state, in matplotlib's own style whatever the user's
matplotlibrc says, with the font that matplotlib ships. So the same arrays give the same bytes with
the same versions of matplotlib and Pillow.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from typing import Any, ParamSpec

import matplotlib.style
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from vit_jax.draw.style import palette

P = ParamSpec("P")

WIDTH_IN = 7.2  # of a figure on a page
DPI = 150
FONT = 9.0  # points; nothing is smaller than SMALL
SMALL = 7.5
TITLE = 10.5

_STYLE = {
    "figure.dpi": DPI,
    "savefig.dpi": DPI,
    "font.family": ["DejaVu Sans"],
    "font.size": FONT,
    "axes.titlesize": FONT,
    "axes.labelsize": FONT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.edgecolor": palette.MUTED,
    "grid.color": palette.GRID,
    "grid.linewidth": 0.6,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "xtick.color": palette.MUTED,
    "ytick.color": palette.MUTED,
    "xtick.labelcolor": "black",
    "ytick.labelcolor": "black",
    "legend.fontsize": SMALL,
    "legend.frameon": False,
    "figure.titlesize": TITLE,
    "lines.linewidth": 1.5,
    "lines.markersize": 4.5,
    "image.interpolation": "nearest",
    # Names of classes and files may contain dollar signs.
    "text.parse_math": False,
}


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Draws in the style of this file."""

    @functools.wraps(draw)
    def draw_in_style(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with matplotlib.style.context(["default", _STYLE]):
            return draw(*args, **kwargs)

    return draw_in_style


def blank(width_in: float, height_in: float, *, layout: str | None = "constrained") -> Figure:
    """An empty figure; with layout=None its axes stay where they are put."""
    engine: Any = layout  # a str, for which matplotlib's annotation lists literals
    made = Figure(figsize=(width_in, height_in), layout=engine, facecolor="white")
    FigureCanvasAgg(made)
    return made


def png(drawn: Figure, *, dpi: int = DPI) -> bytes:
    """The figure as PNG, with no metadata but its resolution: the same figure, the same bytes."""
    out = io.BytesIO()
    with matplotlib.style.context(["default", _STYLE]):
        drawn.savefig(out, format="png", dpi=dpi, metadata={"Software": None})
    return out.getvalue()


def pixels(drawn: Figure, *, dpi: int = DPI) -> np.ndarray:
    """The figure as uint8 [height, width, 3]."""
    with matplotlib.style.context(["default", _STYLE]):
        before = drawn.dpi
        drawn.set_dpi(dpi)
        canvas = FigureCanvasAgg(drawn)
        canvas.draw()
        drawn.set_dpi(before)
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def displayed(images: np.ndarray) -> np.ndarray:
    """Pictures uint8, or floats from 0 to 1, gray [..., H, W] or in colour -> uint8 in colour."""
    x = np.asarray(images)
    if x.dtype != np.uint8:
        x = np.rint(np.clip(x, 0, 1) * 255).astype(np.uint8)
    return x if x.shape[-1] == 3 else np.repeat(x[..., None], 3, axis=-1)
