"""Charts on pages: drawn by matplotlib, inline SVG in the page's colours, in light and dark.

Sizes are in CSS pixels.
"""

from __future__ import annotations

import base64
import io
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.style
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator
from PIL import Image

from vit_jax.core.arrays import encode
from vit_jax.draw import style

MARGIN = 0.05  # of an axis, above and below what is drawn
TINY = 1e-30  # least length of an axis

COLOURS = style.COLOURS
RUNS = style.SERIES  # further runs reuse them, dashed
DASHES = ((), (5, 3), (1.5, 3), (8, 3, 1.5, 3))
_VARIABLES = {colour: f"var(--{name})" for name, colour in COLOURS.items()}

SMALL_PX = 12  # --small of page.css
_STYLE = {
    "figure.dpi": 72,  # a pixel is a point, the unit of matplotlib's SVG
    "savefig.dpi": 72,
    "font.size": SMALL_PX,
    "axes.labelsize": SMALL_PX,
    "xtick.labelsize": SMALL_PX,
    "ytick.labelsize": SMALL_PX,
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
    """Makes empty axes with horizontal lines in a box (left, right, top, bottom) of the picture."""
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
    axes.xaxis.label.set_color(COLOURS["quiet"])
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
    """Sets an axis from `low` to `high` with about `about` round numbers."""
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
    axis.set_major_formatter(style.tick_labels(percent=percent))


def limits(
    values: Sequence[float],
    *,
    start: float | None = None,
    end: float | None = None,
    log: bool = False,
) -> tuple[float, float]:
    """Ends of an axis for finite `values`, which includes `start` and `end`."""
    if log:
        low, high = math.log(min(values)), math.log(max(values))
        margin = MARGIN * (high - low)
        return math.exp(low - margin), math.exp(high + margin)
    bounds = [*values, *(bound for bound in (start, end) if bound is not None)]
    low, high = min(bounds), max(bounds)
    if low == high and low in (0, start):
        high = low + 1
    elif math.isclose(low, high, rel_tol=1e-6):  # a line in the middle
        low, high = low - (abs(low) / 2 or 0.5), high + (abs(high) / 2 or 0.5)
    margin = max(MARGIN * (high - low), TINY)
    return low if low == start else low - margin, high if high == end else high + margin


def svg(axes: Axes, title: str, groups: Mapping[str, Any] | None = None) -> Markup:
    """Writes axes of `blank` as an <svg>.

    Args:
      title: text for those who cannot see it.
      groups: Markup of the attributes, and the tooltip or "", of the groups of artists, by gid.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    for artist in figure.findobj():
        artist.set_clip_on(False)  # a page has no paths to clip by, whose names could clash
    out = io.StringIO()
    figure.savefig(out, format="svg")
    body = re.sub(r'(<text style=")(?:font[^;]*; )+', r"\1", out.getvalue())  # the page's font
    for name, (attributes, hint) in (groups or {}).items():
        tooltip = Markup("<title>{}</title>").format(hint) if hint else ""
        body = body.replace(f'<g id="{name}">', f"<g {attributes}>{tooltip}")
    return _inline(figure, title, body, Markup())


PX_PER_POINT = 1.6  # of a figure: letters of 7.5 points have the size of a page's small ones
MOST_COLOURS = 1024  # of a picture of numbers, whose pixels remain as they are
PHOTO_PX, PHOTO_QUALITY = 256, 80  # its longer side, at most, and that of its WebP
_IMAGE = re.compile(r'<image xlink:href="data:image/png;base64,([^"]*)"[^>]*/>')
_PIXELATED = ' style="image-rendering:crisp-edges;image-rendering:pixelated"'


def figure_svg(figure: Figure, title: str, kind: str) -> Markup:
    """Writes a figure of draw/style.py as an <svg> of a class, in the page's colours."""
    for patch in (figure.patch, *(axes.patch for axes in figure.axes)):
        patch.set_visible(False)
    body = re.sub(r'(<text style="font)(: [\d.]+px)[^;"]*', r"\1-size\2", style.svg(figure))
    width = width_px(figure.get_figwidth())
    attributes = Markup(' class="{}" style="width: {:.0f}px"').format(kind, width)
    return _inline(figure, title, _IMAGE.sub(_recoded, body), attributes)


def width_px(width_in: float) -> float:
    """Largest width of a figure on a page, in CSS pixels."""
    return PX_PER_POINT * 72 * width_in


def _recoded(image: re.Match[str]) -> str:
    """Encodes an <image> anew: photos as WebP, others as a PNG whose pixels stay sharp."""
    element = image[0].replace(_PIXELATED, "")
    picture = Image.open(io.BytesIO(base64.b64decode(image[1]))).convert("RGBA")
    if picture.getcolors(MOST_COLOURS) is None:
        picture.thumbnail((PHOTO_PX, PHOTO_PX))
        encoded = encode(picture.convert("RGB"), "WEBP", quality=PHOTO_QUALITY)
        kind, look = "webp", ""
    else:
        encoded, kind, look = encode(picture, "PNG", optimize=True), "png", _PIXELATED
    data = f"data:image/{kind};base64,{base64.b64encode(encoded).decode()}"
    return element.replace(f"data:image/png;base64,{image[1]}", data).replace("/>", f"{look}/>")


def _inline(figure: Figure, title: str, text: str, attributes: Markup) -> Markup:
    """Makes the text of an SVG file an element of a page."""
    body = text[text.index('<g id="figure_1">') : text.rindex("</svg>")]
    body = re.sub(r"<!--.*?-->", "", body, flags=re.DOTALL)
    body = re.sub(r"\s*\n\s*", "\n", body)
    body = re.sub(r' id="[\w.]+_\d+"', "", body)
    body = re.sub(r' transform="rotate\(-0[^"]*"', "", body)
    body = re.sub(r"#[0-9a-f]{6}", lambda c: _VARIABLES.get(c[0], c[0]), body)
    # But for what scales an image: a tenth would be pixels at its other end.
    body = re.sub(r' (?:d|x|y|transform)="(?!matrix)[^"]*"', _rounded_to_tenths, body)
    width, height = 72 * figure.get_size_inches()
    head = Markup('<svg viewBox="0 0 {:g} {:g}"{} role="img" aria-label="{}">\n')
    return head.format(width, height, attributes, title) + Markup(f"{body}</svg>")


def _rounded_to_tenths(numbers: re.Match[str]) -> str:
    return re.sub(r"-?\d+\.\d\d+", lambda number: f"{float(number[0]):.1f}", numbers[0])
