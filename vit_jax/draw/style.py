"""What all figures have in common: their style, their colours, and their PNG.

Figures are drawn without pyplot and its global state, in matplotlib's own style whatever the user's
matplotlibrc says, with the font that matplotlib ships. So the same arrays give the same bytes with
the same versions of matplotlib and Pillow.

Lines and points have the colours of Okabe and Ito (Color Universal Design, 2008), and markers that
tell them apart without any. Heat has matplotlib's maps whose lightness rises from end to end.
"""

from __future__ import annotations

import functools
import io
import math
from collections.abc import Callable
from typing import Any, ParamSpec

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from PIL import Image

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
# In the order in which they are given out: neighbours differ most. Yellow is too light on white.
SERIES = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION, BLACK)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES: tuple = ("-", (0, (6, 2)), (0, (1.5, 1.5)), (0, (6, 1.5, 1, 1.5)))

SIGNED = "viridis"  # for numbers from -1 to 1, as in the figures of arXiv 2010.11929
HEAT = "inferno"  # for numbers from 0 on
MISSING = "#BBBBBB"  # for NaN
MUTED = "#666666"  # text and lines that step back
GRID = "#DDDDDD"


def series(index: int) -> tuple[str, str]:
    """(colour, marker) of the series of that index, from 0; 49 combinations before they recur."""
    colour, turn = SERIES[index % len(SERIES)], index // len(SERIES)
    return colour, MARKERS[(index + turn) % len(MARKERS)]


P = ParamSpec("P")

WIDTH_IN = 7.2  # of a figure on a page
DPI = 150
FONT = 9.0  # points; nothing is smaller than SMALL
SMALL = 7.5
TITLE = 10.5
# Ticks of each power of ten, by how many the axis spans.
_DIGITS: tuple[tuple[float, tuple[float, ...]], ...] = (
    (0.7, (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)),
    (1.2, (1, 1.5, 2, 3, 5, 7)),
    (2, (1, 2, 5)),
    (4, (1, 3)),
    (math.inf, (1,)),
)
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

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
    "axes.edgecolor": MUTED,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
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
    """Draws in the style of this file, and settles the figure's layout."""

    @functools.wraps(draw)
    def draw_in_style(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with matplotlib.style.context(["default", _STYLE]):
            drawn = draw(*args, **kwargs)
            settle(drawn)
            return drawn

    return draw_in_style


def blank(width_in: float, height_in: float, *, layout: str | None = "constrained") -> Figure:
    """An empty figure; with layout=None its axes stay where they are put."""
    engine: Any = layout  # a str, for which matplotlib's annotation lists literals
    made = Figure(figsize=(width_in, height_in), layout=engine, facecolor="white")
    FigureCanvasAgg(made)
    if layout is not None:
        made.get_layout_engine().set(w_pad=0.08, h_pad=0.08)  # type: ignore[union-attr, call-arg]
    return made


def settle(drawn: Figure) -> None:
    """Lays the axes out for good: matplotlib would do it again, differently, at each save."""
    if drawn.get_layout_engine() is not None:
        drawn.draw_without_rendering()
        drawn.set_layout_engine("none")


def layer_ticks(axes: Axes, depth: int) -> None:
    """A horizontal axis of layers, counted from 1."""
    axes.set_xlim(0.4, depth + 0.6)
    axes.xaxis.set_major_locator(MaxNLocator(min(depth, 12), integer=True))
    axes.grid(axis="x", visible=False)
    axes.set_xlabel("network depth (layer)")


def plain_log_ticks(axis: Axis, *, about: int = 12) -> None:
    """Ticks of a logarithmic axis as numbers: 0.1, 5, 20 k; powers where they reach far."""
    low, high = axis.get_view_interval()
    decades = math.log10(high / low) if low > 0 else 1.0
    digits = next(d for reach, d in _DIGITS if decades < reach)
    axis.set_major_locator(LogLocator(10, subs=digits, numticks=about))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda x, _: short(x)))


def short(number: float) -> str:
    """0.05, 3, 1.5 k, 20 M, 10⁻⁶ and 3×10¹⁸: at most 4 digits."""
    size = abs(number)
    if not size:
        return "0"
    if 1e-3 <= size < 1e12:
        power = next(p for p in (9, 6, 3, 0) if size >= 0.9995 * 10**p or p == 0)
        digits = f"{number / 10**power:.4g}"
        return digits if power == 0 else f"{digits} {'kMG'[power // 3 - 1]}"
    power = math.floor(math.log10(size))
    digits = f"{number / 10.0**power:.3g}"
    raised = f"10{str(power).translate(_RAISED)}"
    return raised if digits == "1" else f"{digits}×{raised}"


def colour(name: str, share: float) -> tuple[float, ...]:
    """The colour of a map of matplotlib at a share from 0 to 1."""
    return tuple(matplotlib.colormaps[name](share))


def png(drawn: Figure, *, dpi: int = DPI) -> bytes:
    """The figure as PNG, with no metadata but its resolution: the same figure, the same bytes."""
    out = io.BytesIO()
    with matplotlib.style.context(["default", _STYLE]):
        drawn.savefig(out, format="png", dpi=dpi, metadata={"Software": None})
    return out.getvalue()


def pixels(drawn: Figure, *, dpi: int = DPI) -> np.ndarray:
    """The figure as uint8 [height, width, 3]."""
    with Image.open(io.BytesIO(png(drawn, dpi=dpi))) as image:
        return np.asarray(image.convert("RGB"))


def displayed(images: np.ndarray) -> np.ndarray:
    """Pictures uint8, or floats from 0 to 1, gray [..., H, W] or in colour -> uint8 in colour."""
    x = np.asarray(images)
    if x.dtype != np.uint8:
        x = np.rint(np.clip(x, 0, 1) * 255).astype(np.uint8)
    return x if x.shape[-1] == 3 else np.repeat(x[..., None], 3, axis=-1)
