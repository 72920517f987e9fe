"""Charts on pages: drawn by matplotlib, inline SVG in the page's colours, in light and dark.

Sizes are in CSS pixels.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.style
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from vit_jax.draw import style

MARGIN = 0.05  # of an axis, above and below what is drawn
TINY = 1e-30  # least length of an axis

_CSS = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
# By the names of their variables; of those in light and dark the first.
COLOURS = dict(reversed(re.findall(r"--(\w+): (#\w{6});", _CSS)))
RUNS = tuple(COLOURS[f"colour{i}"] for i in range(8))  # further runs reuse them, dashed
DASHES = ((), (5, 3), (1.5, 3), (8, 3, 1.5, 3))
_VARIABLES = {colour: f"var(--{name})" for name, colour in COLOURS.items()}

_STYLE = {
    "figure.dpi": 72,  # a pixel is a point, the unit of matplotlib's SVG
    "savefig.dpi": 72,
    "font.size": 11,
    "xtick.labelsize": 11,
    "ytick.labelsize": 11,
    "axes.axisbelow": True,
    "lines.linewidth": 1.4,
    "lines.scale_dashes": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "vit_jax",
    "text.parse_math": False,
}
# Decorates what draws: the style is its own, whatever the user's matplotlibrc says.
styled = matplotlib.style.context(["default", _STYLE])


def dashes(run: int) -> tuple[float, ...]:
    """Lengths of dashes and gaps of run number `run`; empty for a solid line."""
    return DASHES[run // len(RUNS) % len(DASHES)]


def blank(size: tuple[int, int], box: tuple[float, float, float, float]) -> Axes:
    """Empty axes with horizontal lines; `box`: left, right, top and bottom in the picture."""
    (width, height), (left, right, top, bottom) = size, box
    figure = Figure(figsize=(width / 72, height / 72))
    figure.patch.set_visible(False)
    axes = figure.add_axes(
        (left / width, 1 - bottom / height, (right - left) / width, (bottom - top) / height)
    )
    axes.patch.set_visible(False)
    axes.spines[["left", "right", "top"]].set_visible(False)
    axes.spines["bottom"].set(color=COLOURS["quiet"], alpha=0.6, linewidth=1)
    axes.grid(axis="y", color=COLOURS["rule"], linewidth=1)
    axes.tick_params(length=0, pad=6, labelcolor=COLOURS["quiet"])
    return axes


def scale(
    axis: Axis,
    low: float,
    high: float,
    *,
    log: bool = False,
    percent: bool = False,
    about: int = 6,
    integer: bool = False,
) -> None:
    """An axis from `low` to `high` with round numbers on it, about `about` of them."""
    axes = axis.axes
    limit, kind = (
        (axes.set_xlim, axes.set_xscale) if axis is axes.xaxis else (axes.set_ylim, axes.set_yscale)
    )
    kind("log" if log else "linear")
    limit(low, high)
    if log:
        style.plain_log_ticks(axis, about=about)
    else:
        axis.set_major_locator(MaxNLocator(about, steps=[1, 2, 5, 10], integer=integer))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(style.Labels(percent=percent))


def limits(
    values: Sequence[float],
    *,
    start: float | None = None,
    end: float | None = None,
    log: bool = False,
) -> tuple[float, float]:
    """Ends of an axis for finite `values`, not empty; it reaches `start` and `end`, if given."""
    if log:
        low, high = math.log(min(values)), math.log(max(values))
        margin = MARGIN * (high - low)
        return math.exp(low - margin), math.exp(high + margin)
    bounds = [*values, *(bound for bound in (start, end) if bound is not None)]
    low, high = min(bounds), max(bounds)
    if low == high == start:
        high = low + 1
    elif low == high:  # a line in the middle
        low, high = low - (abs(low) / 2 or 0.5), high + (abs(high) / 2 or 0.5)
    margin = max(MARGIN * (high - low), TINY)
    return low if low == start else low - margin, high if high == end else high + margin


def svg(axes: Axes, title: str, groups: Mapping[str, Any] | None = None) -> Markup:
    """The picture as an <svg>.

    Args:
      axes: of `blank`.
      title: what it shows, for those who cannot see it.
      groups: by an artist's gid: the Markup of its group's attributes, and its tooltip or "".
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    for artist in figure.findobj():
        artist.set_clip_on(False)  # a page has no paths to clip by, whose names could clash
    out = io.StringIO()
    figure.savefig(out, format="svg")
    text = out.getvalue()
    body = text[text.index('<g id="figure_1">') : text.rindex("</svg>")]
    body = re.sub(r"<!--.*?-->", "", body, flags=re.DOTALL)
    body = re.sub(r"\s*\n\s*", "\n", body)
    for name, (attributes, hint) in (groups or {}).items():
        tooltip = Markup("<title>{}</title>").format(hint) if hint else ""
        body = body.replace(f'<g id="{name}">', f"<g {attributes}>{tooltip}")
    body = re.sub(r' id="[\w.]+_\d+"', "", body)
    body = re.sub(r' transform="rotate\(-0[^"]*"', "", body)
    body = re.sub(r'(<text style=")(?:font[^;]*; )+', r"\1", body)  # the page's font
    body = re.sub(r"#[0-9a-f]{6}", lambda c: _VARIABLES.get(c[0], c[0]), body)
    body = re.sub(r' (?:d|x|y|transform)="[^"]*"', _rounded, body)
    width, height = 72 * figure.get_size_inches()
    head = Markup('<svg viewBox="0 0 {:g} {:g}" role="img" aria-label="{}">\n')
    return head.format(width, height, title) + Markup(f"{body}</svg>")


def _rounded(numbers: re.Match[str]) -> str:
    """The attribute with tenths of pixels."""
    return re.sub(r"-?\d+\.\d\d+", lambda number: f"{float(number[0]):.1f}", numbers[0])
