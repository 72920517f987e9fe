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
AXIS_IN, NARROW_AXIS_IN = 5.0, 2.2  # length of the horizontal axis, about
# Shares of the horizontal axis.
ASIDE, MOST_ASIDE = 0.02, 0.1  # between lines at one place, so that dots do not hide each other
SEEDS_ASIDE = 0.009  # from their mean
LABEL_IN = 0.7  # the least room of a label on the horizontal axis
MOST_LINES = 16  # named in the legend
FEWEST_FACTOR = 8  # between the ends of a logarithmic axis


Dots = dict[str, list[float]]  # of a line: value on the axis -> metric of every seed


def curves(rows: Sequence[PointProgress], metric: str) -> tuple[str, dict[str, Dots]]:
    """The horizontal axis, and the lines over it, by name.

    The axis is the numeric one with most values, not the seed if there is another.
    """
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
    """The picture."""
    values = list(dict.fromkeys(value for dots in lines.values() for value in dots))
    seeds = [each for dots in lines.values() for each in dots.values()]
    where = places(axis, values)
    figure = style.blank(*SIZE_IN)
    axes = figure.add_subplot()
    note = "hollow: a seed; filled: their mean" if any(len(each) > 1 for each in seeds) else ""
    style.entitle(figure, title(axis, metric), note)
    ends = charts.limits([v for each in seeds for v in each])
    charts.scale(axes.yaxis, *ends, percent=is_percentage(metric))
    axes.set_ylabel(words(metric))
    _scale_across(axes, axis, where)
    for number, (name, dots) in enumerate(lines.items()):
        aside = (number - (len(lines) - 1) / 2) * min(ASIDE, MOST_ASIDE / len(lines))
        joined = is_numeric(values) and axis != SEED
        label = tiles.fit(name, 2.0, style.SMALL) if number < MOST_LINES else None
        _draw_line(axes, where, dots, style.series(number), aside, joined=joined, label=label)
    if len(lines) > 1:
        if len(lines) > MOST_LINES:
            axes.plot([], [], " ", label=f"and {len(lines) - MOST_LINES} more")
        style.legend(figure, beside=True)
    return figure


def title(axis: str, metric: str) -> str:
    """What the picture shows."""
    return f"{words(metric)} over {axis}" if axis else words(metric)


def places(axis: str, values: Sequence[str]) -> dict[str, float]:
    """The place of each value, 0 to 1: by its logarithm, by its size, or one after the other."""
    if not is_numeric(values) or len(values) == 1 or axis == SEED:
        return {value: (k + 0.5) / len(values) for k, value in enumerate(values)}
    numbers = {value: float(value) for value in values}
    low, high = min(numbers.values()), max(numbers.values())
    log = low > 0 and (high / low >= FEWEST_FACTOR or axis.endswith("lr"))
    if log:
        numbers = {value: math.log(number) for value, number in numbers.items()}
        low, high = math.log(low), math.log(high)
    return {value: 0.05 + 0.9 * (n - low) / (high - low) for value, n in numbers.items()}


def is_numeric(values: Sequence[str]) -> bool:
    """Returns whether all values are finite numbers, no two of them equal."""
    try:
        numbers = [float(value) for value in values]
    except ValueError:
        return False
    return all(map(math.isfinite, numbers)) and len(set(numbers)) == len(numbers)


def _scale_across(axes: Axes, axis: str, where: Mapping[str, float]) -> None:
    length = NARROW_AXIS_IN if style.is_narrow() else AXIS_IN
    room = max(length / len(where), LABEL_IN)
    free_from = -math.inf
    labels = []
    for value, place in sorted(where.items(), key=lambda item: item[1]):
        label = tiles.fit(value, room, style.SMALL)
        half = tiles.width_in(label, style.SMALL) / length / 2
        fits = place - half > free_from  # labels do not overlap; a tick without one stays
        labels.append(label if fits else "")
        free_from = place + half + 0.01 if fits else free_from
    axes.set_xlim(-0.02, 1.02)
    axes.set_xticks(sorted(where.values()), labels)
    axes.grid(axis="x", visible=False)
    axes.set_xlabel(axis)


def _draw_line(
    axes: Axes,
    where: Mapping[str, float],
    dots: Dots,
    look: tuple[str, str],
    aside: float,
    *,
    joined: bool,
    label: str | None,
) -> None:
    """Draws seeds as hollow dots, and their means or single values as filled ones."""
    colour, marker = look
    ordered = sorted(dots.items(), key=lambda item: where[item[0]])
    across = [where[at] + aside for at, _ in ordered]
    means = [statistics.mean(each) for _, each in ordered]
    axes.plot(
        across, means, marker=marker, ls="-" if joined else "", color=colour, label=label, zorder=3
    )
    hollow = {"ms": 3.5, "mfc": style.COLOURS["paper"], "mec": colour, "mew": 0.9, "zorder": 2.5}
    for x, (_, values) in zip(across, ordered, strict=True):
        if len(values) > 1:
            axes.plot([x + SEEDS_ASIDE] * len(values), values, "o", **hollow)
