"""A panel as inline SVG: axes, a line for each run, and the numbers behind it for the hovering."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from html import escape

from vit_jax.draw import scales
from vit_jax.draw.scales import Scale
from vit_jax.report import panels, thinning
from vit_jax.report.panels import Panel, Style
from vit_jax.store.runs import Series

# In the units of the picture, which are about CSS pixels.
WIDTH, HEIGHT = 330, 188
LEFT, RIGHT, TOP, BOTTOM = 46, 322, 10, 164
COLUMNS = 300  # no more points are kept than these many columns can show
MEANS = 80  # of a noisy curve with more points, through which its line goes

# Values differ so much that on a linear axis most of them would lie on one line.
LOG_FACTOR = 30
DOTS = 40  # of so few points each gets a dot


def draw(panel: Panel, last_step: int) -> str:
    """The <figure>; its horizontal axis ends at `last_step`, so that panels can be compared."""
    across = Scale(0, max(last_step, 1))
    up = _vertical(panel)
    steps = across.ticks(6)
    grid = [*_rows(up, panel.style.percent)]
    for step, label in zip(steps, scales.labels(steps), strict=True):
        x = _x(across, step)
        grid.append(f'<text x="{x:.1f}" y="{BOTTOM + 16}" text-anchor="middle">{label}</text>')
    lines = [_line(run, series, across, up, panel.style) for run, series in panel.lines.items()]
    kind = " data-percent" if panel.style.percent else ""
    log = '<span class="note">log scale</span>' if up.log else ""
    title = escape(panel.title)
    return (
        f'<figure data-low="{up.low!r}" data-high="{up.high!r}" data-last="{across.high!r}"'
        f"{' data-log' if up.log else ''}{kind}>\n"
        f"<figcaption><b>{title}</b>{log}<code>{escape(panel.key)}</code></figcaption>\n"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">\n'
        + "\n".join(grid)
        + f'\n<line class="axis" x1="{LEFT}" x2="{RIGHT}" y1="{BOTTOM}" y2="{BOTTOM}"/>\n'
        + "\n".join(lines)
        + f'\n<line class="cursor" y1="{TOP}" y2="{BOTTOM}"/>\n</svg>\n</figure>'
    )


def shows_means(panel: Panel) -> bool:
    """Whether any line of it goes through means."""
    return any(_has_means(series, panel.style) for series in panel.lines.values())


def _has_means(series: Series, style: Style) -> bool:
    return not style.exact and thinning.is_dense(series, MEANS)


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


def _rows(up: Scale, percent: bool) -> Iterator[str]:
    """The horizontal lines and what stands at them."""
    ticks = up.ticks(6)
    for tick, label in zip(ticks, scales.labels(ticks, percent=percent), strict=True):
        y = _y(up, tick)
        yield f'<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{label}</text>'


def _line(run: int, series: Series, across: Scale, up: Scale, style: Style) -> str:
    """The line of a run, its dots, and crosses at the bottom where it was not finite.

    A noisy line of many points goes through means, which hovering shows, with the values pale
    behind it.
    """
    last_step = int(across.high)
    kept = thinning.thin(series, last_step=last_step, columns=COLUMNS)
    parts, told, mark = [f'<path d="{_path(kept, across, up)}"/>'], kept, ""
    if _has_means(series, style):
        told, mark = thinning.means(series, last_step=last_step, columns=MEANS), " data-means"
        parts = [f'<path class="each" d="{_path(kept, across, up)}"/>']
        parts.append(f'<path d="{_path(told, across, up)}"/>')
    finite = [(x, y) for x, y in zip(*kept, strict=True) if not math.isnan(y)]
    if len(finite) <= DOTS:
        parts += [
            f'<circle cx="{_x(across, x):.1f}" cy="{_y(up, y):.1f}" r="2"/>' for x, y in finite
        ]
    bad = [_x(across, x) for x, y in zip(*kept, strict=True) if math.isnan(y)]
    if bad:
        crosses = "".join(f"M{x - 3:.1f} {BOTTOM - 6}l6 6m0-6l-6 6" for x in bad)
        parts.append(f'<path class="cross" d="{crosses}"><title>not finite</title></path>')
    values = [None if math.isnan(v) else float(f"{v:.5g}") for v in told.values]
    points = json.dumps([told.steps, values], separators=(",", ":"))
    return (
        f'<g class="line run{run}" data-run="{run}" data-points="{points}"{mark}>'
        f"{''.join(parts)}</g>"
    )


def _path(series: Series, across: Scale, up: Scale) -> str:
    """With a gap wherever a value is not finite."""
    parts, pen = [], "M"
    for step, value in zip(*series, strict=True):
        if math.isnan(value):
            pen = "M"
            continue
        # A line of no length shows where a point stands alone, since its ends are round.
        stand = "h0" if pen == "M" else ""
        parts.append(f"{pen}{_x(across, step):.1f} {_y(up, value):.1f}{stand}")
        pen = "L"
    return "".join(parts)


def _x(across: Scale, step: float) -> float:
    return LEFT + (RIGHT - LEFT) * across.place(step)


def _y(up: Scale, value: float) -> float:
    return BOTTOM - (BOTTOM - TOP) * up.place(value)
