"""results.png: the metric of finished points over one axis, lines for values of the others.

Seeds are hollow dots beside their mean, which the line goes through; an axis without an order has
no line.
"""

import functools
import math
import statistics
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vit_jax.core.metric_names import is_percentage, words
from vit_jax.draw import charts, style, tiles
from vit_jax.tools.lab.sweep.grid import SEED, distinct_names, short
from vit_jax.tools.lab.sweep.progress import PointProgress

SIZE_IN = 7.6, 4.2
AXIS_IN = 5.0  # length of the horizontal axis, about
MOST_TICKS = 6  # of an axis without an order
MOST_LINES = 16  # named in the legend
FEWEST_FACTOR = 8  # between the ends of a logarithmic axis


Dots = dict[str, list[float]]  # of a line: value on the axis -> metric of every seed


def curves(rows: Sequence[PointProgress], metric: str) -> tuple[str, dict[str, Dots]]:
    """The numeric axis with most values, not the seed if there is another, and lines over it."""
    axes = list(rows[0].point.values)
    others = [axis for axis in axes if axis != SEED] or axes
    values = {axis: list(dict.fromkeys(row.point.values[axis] for row in rows)) for axis in others}
    chosen = max(others, key=lambda a: (is_numeric(values[a]), len(values[a])), default="")
    names = {a: distinct_names(values[a], functools.partial(short, a)) for a in others}
    lines: dict[str, Dots] = {}
    for row in rows:
        value = row.numbers.get(metric, math.nan)
        if row.state == "finished" and math.isfinite(value):
            spelt = {a: names[a][row.point.values[a]] for a in others}
            place = spelt.pop(chosen, "")
            name = ", ".join(f"{a.rpartition('.')[2]} {v}" for a, v in spelt.items())
            lines.setdefault(name, {}).setdefault(place, []).append(value)
    return chosen, lines


@style.styled
def draw(axis: str, lines: Mapping[str, Dots], metric: str) -> Figure:
    values = list(dict.fromkeys(value for dots in lines.values() for value in dots))
    seeds = [each for dots in lines.values() for each in dots.values()]
    is_scale = is_numeric(values) and axis != SEED
    where = {value: float(value) if is_scale else k for k, value in enumerate(values)}
    figure = style.blank(*SIZE_IN)
    axes = figure.add_subplot()
    note = "hollow: a seed; filled: their mean" if any(len(each) > 1 for each in seeds) else ""
    style.entitle(figure, title(axis, metric), note)
    ends = charts.limits([v for each in seeds for v in each])
    charts.scale(axes.yaxis, *ends, percent=is_percentage(metric))
    axes.set_ylabel(words(metric))
    axes.set_xlabel(axis)
    if is_scale and len(values) > 1:
        log = is_logarithmic(axis, [*where.values()])
        charts.scale(axes.xaxis, *charts.limits([*where.values()], log=log), log=log)
    else:
        shown = values[:: -(-len(values) // MOST_TICKS)]
        labels = [tiles.fit(value, AXIS_IN / len(shown), style.SMALL) for value in shown]
        axes.set_xticks([where[value] for value in shown], labels)
        axes.set_xlim(-0.5, len(values) - 0.5)
    axes.grid(axis="x", visible=False)
    for number, (name, dots) in enumerate(lines.items()):
        label = tiles.fit(name, 2.0, style.SMALL) if number < MOST_LINES else None
        _draw_line(axes, where, dots, style.series(number), joined=is_scale, label=label)
    if len(lines) > 1:
        if len(lines) > MOST_LINES:
            axes.plot([], [], " ", label=f"and {len(lines) - MOST_LINES} more")
        style.legend(figure, beside=True)
    return figure


def title(axis: str, metric: str) -> str:
    return f"{words(metric)} over {axis}" if axis else words(metric)


def is_logarithmic(axis: str, numbers: Sequence[float]) -> bool:
    low, high = min(numbers), max(numbers)
    return low > 0 and (high / low >= FEWEST_FACTOR or axis.endswith("lr"))


def is_numeric(values: Sequence[str]) -> bool:
    """Returns whether all values are finite numbers, no two of them equal."""
    try:
        numbers = [float(value) for value in values]
    except ValueError:
        return False
    return all(map(math.isfinite, numbers)) and len(set(numbers)) == len(numbers)


def _draw_line(
    axes: Axes,
    where: Mapping[str, float],
    dots: Dots,
    look: tuple[str, str],
    *,
    joined: bool,
    label: str | None,
) -> None:
    colour, marker = look
    ordered = sorted((where[value], each) for value, each in dots.items())
    means = [(x, statistics.mean(each)) for x, each in ordered]
    line = "-" if joined else ""
    axes.plot(
        *zip(*means, strict=True), marker=marker, ls=line, color=colour, label=label, zorder=3
    )
    hollow = {"ms": 3.5, "mfc": style.COLOURS["paper"], "mec": colour, "mew": 0.9, "zorder": 2.5}
    for x, each in ordered:
        if len(each) > 1:
            axes.plot([x] * len(each), each, "o", **hollow)
