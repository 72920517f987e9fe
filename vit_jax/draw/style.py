"""The style, colours and PNG of all figures.

Figures are drawn without pyplot and its global state, in matplotlib's own style whatever the user's
matplotlibrc says, with the font that matplotlib ships. So the same arrays give the same bytes with
the same versions of matplotlib and Pillow.

Colours are those of page.css, in light. They stay apart for eyes that lack a kind of cone, and
markers tell lines and points apart without any colour. Heat has matplotlib's maps whose lightness
rises from end to end.
"""

from __future__ import annotations

import contextlib
import functools
import io
import math
import re
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import (
    Formatter,
    LogLocator,
    MaxNLocator,
    NullLocator,
    PercentFormatter,
    StrMethodFormatter,
)
from PIL import Image

_CSS = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
# By the names of their variables; of those in light and dark the first.
COLOURS = dict(reversed(re.findall(r"--(\w+): (#\w{6});", _CSS)))
# In the order in which they are given out.
SERIES = BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION, _ = tuple(
    COLOURS[f"colour{i}"] for i in range(7)
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

SIGNED = "viridis"  # for numbers from -1 to 1, as in the figures of arXiv 2010.11929
HEAT = "inferno"  # for numbers from 0 on
MISSING = "#BBBBBB"  # for NaN
INK, MUTED, GRID = COLOURS["ink"], COLOURS["quiet"], COLOURS["rule"]  # MUTED: what steps back
OVER_PHOTOS = "#fefefe"  # white that a page keeps in the dark


def series(index: int) -> tuple[str, str]:
    """(colour, marker) of the series of that index, from 0; 49 combinations before they recur."""
    colour, turn = SERIES[index % len(SERIES)], index // len(SERIES)
    return colour, MARKERS[(index + turn) % len(MARKERS)]


P = ParamSpec("P")

WIDTH_IN, NARROW_IN = 7.2, 2.9  # of a figure, and of one for a phone
LEAST_IN = 2.9  # height of a figure on a phone, before its legend
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
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.fontsize": SMALL,
    "legend.frameon": False,
    "figure.titlesize": TITLE,
    "lines.linewidth": 1.5,
    "lines.markersize": 4.5,
    "image.interpolation": "none",  # nearest; in SVG with the pixels that there are
    "svg.fonttype": "none",
    "svg.hashsalt": "vit_jax",
    # Names of classes and files may contain dollar signs.
    "text.parse_math": False,
}


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Draws in the style of this file, and settles the figure's layout."""

    @functools.wraps(draw)
    def draw_in_style(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with matplotlib.style.context(["default", _STYLE]):
            drawn = draw(*args, **kwargs)
            if drawn.get_layout_engine() is not None:
                # For good: matplotlib would lay it out again, differently, at each save.
                drawn.draw_without_rendering()
                drawn.set_layout_engine("none")
            return drawn

    return draw_in_style


class Canvas(NamedTuple):
    """Largest width of figures, and whether they have their titles in them."""

    width_in: float = WIDTH_IN
    titled: bool = True


_canvas: ContextVar[Canvas] = ContextVar("canvas")


@contextlib.contextmanager
def on_page(width_in: float) -> Iterator[None]:
    """Context in which figures are drawn for a page, which has their titles and notes."""
    before = _canvas.set(Canvas(width_in, titled=False))
    try:
        yield
    finally:
        _canvas.reset(before)


def canvas() -> Canvas:
    """The canvas of the current context."""
    return _canvas.get(Canvas())


def is_narrow() -> bool:
    """True if figures are drawn for a phone."""
    return canvas().width_in < WIDTH_IN


def blank(width_in: float, height_in: float, *, layout: str | None = "constrained") -> Figure:
    """Makes an empty figure, no wider than the page; layout=None leaves its axes in place."""
    engine: Any = layout  # a str, for which matplotlib's annotation lists literals
    room, titled = canvas()
    if layout is not None and not titled and width_in > room:
        width_in, height_in = room, max(height_in * room / width_in, min(height_in, LEAST_IN))
    made = Figure(figsize=(width_in, height_in), layout=engine, facecolor="white")
    FigureCanvasAgg(made)
    if layout is not None:
        made.get_layout_engine().set(w_pad=0.08, h_pad=0.08)  # type: ignore[union-attr, call-arg]
    return made


def entitle(drawn: Figure, title: str, note: str = "") -> None:
    """Writes a title and a small note below it; pages take the note from the figure's label."""
    drawn.set_label(note)
    if canvas().titled:
        drawn.suptitle(title, x=0.02, ha="left")
        if note:
            drawn.axes[0].set_title(note, loc="left", size=SMALL, color=MUTED)


def legend(drawn: Figure, *, beside: bool = False) -> None:
    """Adds a legend below all axes, in as many columns as fit; on screens beside them."""
    if beside and not is_narrow():
        drawn.legend(loc="outside right upper")
        return
    handles, names = drawn.axes[0].get_legend_handles_labels()
    for columns in range(min(3, len(names)), 0, -1):
        made = drawn.legend(handles, names, loc="outside lower center", ncols=columns)
        if columns == 1 or made.get_window_extent().width < drawn.bbox.width:
            break
        made.remove()
    if is_narrow():
        high = made.get_window_extent().height / drawn.dpi
        drawn.set_figheight(drawn.get_figheight() + high)


def layer_ticks(axes: Axes, depth: int) -> None:
    """Labels the horizontal axis with layers, counted from 1."""
    axes.set_xlim(0.4, depth + 0.6)
    axes.xaxis.set_major_locator(MaxNLocator(min(depth, 12), integer=True))
    axes.grid(axis="x", visible=False)
    axes.set_xlabel("network depth (layer)")


def plain_log_ticks(axis: Axis, *, about: int = 12) -> None:
    """Sets a few ticks of each power of ten, with labels, on a logarithmic axis."""
    low, high = axis.get_view_interval()
    decades = math.log10(high / low) if low > 0 else 1.0
    digits = next(d for reach, d in _DIGITS if decades < reach)
    axis.set_major_locator(LogLocator(10, subs=digits, numticks=about))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(tick_labels())


def tick_labels(*, percent: bool = False) -> Formatter:
    """Labels of an axis: "0.5", "20,000", "1e-06", "25%"."""
    return PercentFormatter(1) if percent else StrMethodFormatter("{x:,g}")


def png(drawn: Figure, *, dpi: int = DPI) -> bytes:
    """The figure as PNG, with no metadata but its resolution: the same figure, the same bytes."""
    out = io.BytesIO()
    with matplotlib.style.context(["default", _STYLE]):
        drawn.savefig(out, format="png", dpi=dpi, metadata={"Software": None})
    return out.getvalue()


def svg(drawn: Figure) -> str:
    """The figure as the text of an SVG file."""
    out = io.StringIO()
    with matplotlib.style.context(["default", _STYLE]):
        drawn.savefig(out, format="svg")
    return out.getvalue()


def pixels(drawn: Figure, *, dpi: int = DPI) -> np.ndarray:
    """The figure as uint8 [height, width, 3]."""
    with Image.open(io.BytesIO(png(drawn, dpi=dpi))) as image:
        return np.asarray(image.convert("RGB"))


def displayed(images: np.ndarray) -> np.ndarray:
    """Converts images, uint8 or floats from 0 to 1, gray or in colour, to uint8 in colour."""
    x = np.asarray(images)
    if x.dtype != np.uint8:
        x = np.rint(np.clip(x, 0, 1) * 255).astype(np.uint8)
    return x if x.shape[-1] == 3 else np.repeat(x[..., None], 3, axis=-1)
