"""A panel as inline SVG: axes, a line for each run, and its numbers, shown on hovering."""

import json
import math
from html import escape
from itertools import groupby

from vit_jax.draw import scales, svg
from vit_jax.draw.scales import Axes, Scale
from vit_jax.store.runs import Series
from vit_jax.tools.look.report import panels
from vit_jax.tools.look.report.panels import Panel, Style

# In about CSS pixels; page.js has them too.
SIZE = 330, 188
LEFT, RIGHT, TOP, BOTTOM = 46, 322, 10, 164
COLUMNS = 300  # no more points are kept than these many columns can show
MEANS = 80  # of a noisy curve with more points, through which its line goes

# Values differ so much that on a linear axis most of them would lie on one line.
LOG_FACTOR = 30
DOTS = 40  # a line of at most this many points has dots


def draw(panel: Panel, last_step: int) -> str:
    """The <figure>; its horizontal axis ends at `last_step`, so that panels can be compared."""
    style, up = panel.style, _vertical(panel)
    axes = Axes(Scale(0, max(last_step, 1)), up, LEFT, RIGHT, TOP, BOTTOM)
    behind = [
        *svg.grid(axes, up.ticks(6), percent=style.percent),
        *svg.values_below(axes, axes.across.ticks(6)),
    ]
    lines = [_line(run, series, axes, style) for run, series in panel.lines.items()]
    cursor = f'<line class="cursor" y1="{TOP}" y2="{BOTTOM}"/>'
    flags = " data-log" * up.log + " data-percent" * style.percent
    log = '<span class="note">log scale</span>' if up.log else ""
    picture = svg.picture(panel.title, SIZE, axes, behind, [*lines, cursor])
    return (
        f'<figure data-low="{up.low!r}" data-high="{up.high!r}" data-last="{axes.across.high!r}"'
        f"{flags}>\n<figcaption><b>{escape(panel.title)}</b>{log}<code>{escape(panel.key)}</code>"
        f"</figcaption>\n{picture}\n</figure>"
    )


def shows_means(panel: Panel) -> bool:
    """Whether any of the panel's lines goes through means."""
    return any(_has_means(series, panel.style) for series in panel.lines.values())


def _has_means(series: Series, style: Style) -> bool:
    return not style.exact and len(series.steps) > 2 * MEANS


def _vertical(panel: Panel) -> Scale:
    style, values = panel.style, panels.finite(panel)
    if not values:
        return Scale(0.0, 1.0)
    log = style.log and min(values) > 0 and max(values) / min(values) >= LOG_FACTOR
    scale = scales.fit(values, start=style.start, end=style.end, log=log)
    if style.percent:  # no margin beyond 0 and 100 %
        low, high = max(scale.low, min(0.0, *values)), min(scale.high, max(1.0, *values))
        return Scale(low, high)
    return scale


def _line(run: int, series: Series, axes: Axes, style: Style) -> str:
    """The line of a run, its dots, and crosses at the bottom where it was not finite.

    A noisy line of many points goes through means, which hovering shows, with the values pale
    behind it.
    """
    last_step = int(axes.across.high)
    kept = thin(series, last_step=last_step, columns=COLUMNS)
    parts, hovered, mark = [f'<path d="{_path(kept, axes)}"/>'], kept, ""
    if _has_means(series, style):
        hovered, mark = means(series, last_step=last_step, columns=MEANS), " data-means"
        parts = [f'<path class="each" d="{_path(kept, axes)}"/>']
        parts.append(f'<path d="{_path(hovered, axes)}"/>')
    finite = [(x, y) for x, y in zip(*kept, strict=True) if not math.isnan(y)]
    if len(finite) <= DOTS:
        parts += [f'<circle cx="{axes.x(x):.1f}" cy="{axes.y(y):.1f}" r="2"/>' for x, y in finite]
    bad = [axes.x(x) for x, y in zip(*kept, strict=True) if math.isnan(y)]
    if bad:
        crosses = "".join(f"M{x - 3:.1f} {BOTTOM - 6}l6 6m0-6l-6 6" for x in bad)
        parts.append(f'<path class="cross" d="{crosses}"><title>not finite</title></path>')
    values = [None if math.isnan(v) else float(f"{v:.5g}") for v in hovered.values]
    points = json.dumps([hovered.steps, values], separators=(",", ":"))
    return (
        f'<g class="line run{run}" data-run="{run}" data-points="{points}"{mark}>'
        f"{''.join(parts)}</g>"
    )


def _path(series: Series, axes: Axes) -> str:
    """The line's path, with a gap wherever a value is not finite."""
    parts, pen = [], "M"
    for step, value in zip(*series, strict=True):
        if math.isnan(value):
            pen = "M"
            continue
        # A line of no length shows a point without neighbours, since its ends are round.
        dot = "h0" if pen == "M" else ""
        parts.append(f"{pen}{axes.x(step):.1f} {axes.y(value):.1f}{dot}")
        pen = "L"
    return "".join(parts)


def thin(series: Series, *, last_step: int, columns: int) -> Series:
    """Keeps the last point and at most 3 a column: the lowest, the highest and the first NaN.

    So peaks and gaps remain, and each point that is left was logged as it is.
    """
    if len(series.steps) <= 2 * columns:
        return series
    kept = {len(series.steps) - 1}
    for points in _columns(series, last_step, columns):
        finite = [i for i in points if not math.isnan(series.values[i])]
        if finite:
            kept.add(min(finite, key=series.values.__getitem__))
            kept.add(max(finite, key=series.values.__getitem__))
        kept.update([i for i in points if math.isnan(series.values[i])][:1])
    order = sorted(kept)
    return Series([series.steps[i] for i in order], [series.values[i] for i in order])


def means(series: Series, *, last_step: int, columns: int) -> Series:
    """A point for each column: the mean of its finite values, at the middle one of its steps."""
    averaged = Series([], [])
    for points in _columns(series, last_step, columns):
        finite = [v for v in (series.values[i] for i in points) if not math.isnan(v)]
        averaged.steps.append(series.steps[points[len(points) // 2]])
        averaged.values.append(math.fsum(finite) / len(finite) if finite else math.nan)
    return averaged


def _columns(series: Series, last_step: int, columns: int) -> list[list[int]]:
    """The positions of the points in each column, of equally many steps, that has any."""
    column = lambda i: series.steps[i] * columns // (last_step + 1)
    return [list(points) for _, points in groupby(range(len(series.steps)), key=column)]
