"""A panel as inline SVG: axes, a line for each run, and its numbers, shown on hovering."""

import json
import math
from itertools import groupby
from typing import Any

from markupsafe import Markup
from matplotlib.axes import Axes

from vit_jax.draw import charts
from vit_jax.store.runs import Series
from vit_jax.tools.look.report import panels
from vit_jax.tools.look.report.panels import Panel, Style

# In CSS pixels; page.js has them too.
SIZE = 330, 188
LEFT, RIGHT, TOP, BOTTOM = 46, 322, 10, 164
COLUMNS = 300  # no more points are kept than these many columns can show
MEANS = 80  # of a noisy curve with more points, through which its line goes

# Values differ so much that on a linear axis most of them would lie on one line.
LOG_FACTOR = 30
DOTS = 40  # a line of at most this many points has dots


@charts.styled
def draw(panel: Panel, last_step: int) -> dict[str, Any]:
    """The picture, and the axes that the script needs; the horizontal one ends at `last_step`."""
    axes = charts.blank(SIZE, (LEFT, RIGHT, TOP, BOTTOM))
    charts.scale(axes.xaxis, 0, max(last_step, 1))
    is_log = _scale_vertically(axes, panel)
    groups: dict[str, tuple[Markup, str]] = {}
    for run, series in panel.lines.items():
        groups |= _draw_line(axes, run, series, panel.style)
    low, high = axes.get_ylim()
    return {
        "panel": panel,
        "picture": charts.svg(axes, panel.title, groups),
        "log": is_log,
        "low": float(low),
        "high": float(high),
        "last": float(axes.get_xlim()[1]),
    }


def shows_means(panel: Panel) -> bool:
    """Whether any of the panel's lines goes through means."""
    return any(_has_means(series, panel.style) for series in panel.lines.values())


def _has_means(series: Series, style: Style) -> bool:
    return not style.exact and len(series.steps) > 2 * MEANS


def _scale_vertically(axes: Axes, panel: Panel) -> bool:
    """Returns whether the axis is logarithmic."""
    style, values = panel.style, panels.finite(panel)
    log = style.log and bool(values) and min(values) > 0 and max(values) / min(values) >= LOG_FACTOR
    low, high = 0.0, 1.0
    if values:
        low, high = charts.limits(values, start=style.start, end=style.end, log=log)
        if style.percent:  # no margin beyond 0 and 100 %
            low, high = max(low, min(0.0, *values)), min(high, max(1.0, *values))
    charts.scale(axes.yaxis, low, high, log=log, percent=style.percent)
    return log


def _draw_line(axes: Axes, run: int, series: Series, style: Style) -> dict[str, tuple[Markup, str]]:
    """Draws the line of a run, its dots, and crosses at the bottom where it was not finite.

    A noisy line of many points goes through means, which hovering shows, with the values pale
    behind it. Returns the attributes of the groups.
    """
    last_step = int(axes.get_xlim()[1])
    kept = thin(series, last_step=last_step, columns=COLUMNS)
    look = {"color": charts.RUNS[run % len(charts.RUNS)], "solid_capstyle": "round"}
    hovered, mark = kept, Markup()
    groups = {f"pale{run}": (_attributes(run), ""), f"bad{run}": (_attributes(run), "not finite")}
    if _has_means(series, style):
        hovered, mark = means(series, last_step=last_step, columns=MEANS), Markup(" data-means")
        axes.plot(*kept, **look, alpha=0.3, lw=1, gid=f"pale{run}")
    finite = [not math.isnan(value) for value in hovered.values]
    dotted = [i for i, is_finite in enumerate(finite) if is_finite]
    if len(dotted) > DOTS:  # only those without neighbours, of which there is no line
        dotted = [i for i in dotted if not any(finite[max(i - 1, 0) : i] + finite[i + 1 : i + 2])]
    (line,) = axes.plot(
        *hovered, **look, marker="o", ms=4, mew=0, markevery=dotted, gid=f"run{run}"
    )
    if charts.dashes(run):
        line.set_linestyle((0, charts.dashes(run)))
    bad = [step for step, value in zip(*kept, strict=True) if math.isnan(value)]
    if bad:
        at_bottom = axes.get_xaxis_transform()
        heights = [3 / (BOTTOM - TOP)] * len(bad)
        axes.plot(bad, heights, "x", **look, ms=6, mew=1.6, transform=at_bottom, gid=f"bad{run}")
    values = [None if math.isnan(v) else float(f"{v:.5g}") for v in hovered.values]
    points = json.dumps([hovered.steps, values], separators=(",", ":"))
    numbers = Markup(' data-points="{}"{}').format(points, mark)
    return groups | {f"run{run}": (_attributes(run) + numbers, "")}


def _attributes(run: int) -> Markup:
    return Markup(f'class="line run{run}" data-run="{run}"')


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
