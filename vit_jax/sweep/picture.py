"""results.png: the metric over one axis, a line for each combination of the others.

Seeds are hollow dots beside their mean, which the line goes through; an axis without an order has
no line.
"""

import io
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from etils import epath
from PIL import Image

from vit_jax.draw import scales
from vit_jax.draw.canvas import COLOURS, Canvas
from vit_jax.draw.scales import Axes, Scale
from vit_jax.store import workdir
from vit_jax.sweep.grid import CONFIG
from vit_jax.sweep.progress import PointProgress
from vit_jax.sweep.results import SEED, axes_of

PNG_FILE = "results.png"

WIDTH, HEIGHT, LEFT, TOP, BOTTOM, RIGHT = 760, 420, 64, 56, 52, 28  # in pixels
LEGEND = 200  # at the right, if there are several lines
DOT, LINE_HEIGHT = 3.5, 20
ASIDE, MOST_ASIDE = 12, 60  # between lines at one place, so that dots do not hide each other
SEEDS_ASIDE = 5  # from their mean
LABEL = 60  # the least room of a label on the horizontal axis
PAPER, INK, PALE, RULE = "#ffffff", "#1b1b1b", "#6a6a6a", "#e4e4e4"
MOST_LINES = 16  # named in the legend
FEWEST_FACTOR = 8  # between the ends of a logarithmic axis


class Line(NamedTuple):
    """A curve: its name, and the metric's values at each place of the axis."""

    name: str
    dots: dict[str, list[float]]  # value on the axis -> metric of every seed


def write(file: epath.Path, rows: Sequence[PointProgress], metric: str) -> bool:
    """Draws the points that have finished; False if there are none. UserError if it cannot."""
    axis, lines = curves(rows, metric)
    if not lines:
        return False
    data = io.BytesIO()
    draw(axis, lines, metric).save(data, format="png", optimize=True)
    try:
        file.write_bytes(data.getvalue())
    except OSError as error:
        raise workdir.unwritable(file.parent, error) from error
    return True


def curves(rows: Sequence[PointProgress], metric: str) -> tuple[str, list[Line]]:
    """The horizontal axis, and the lines over it.

    The axis is the numeric one with most values, not the seed if there is another.
    """
    axes = axes_of(rows)
    others = [axis for axis in axes if axis != SEED] or axes
    values = {axis: list(dict.fromkeys(row.point.values[axis] for row in rows)) for axis in others}
    chosen = max(others, key=lambda a: (is_numeric(values[a]), len(values[a])), default="")
    lines: dict[str, Line] = {}
    for row in rows:
        value = row.numbers.get(metric, math.nan)
        if row.state == "finished" and math.isfinite(value):
            rest = [f"{_short(a)} {_spell(a, row.point.values[a])}" for a in others if a != chosen]
            line = lines.setdefault(", ".join(rest), Line(", ".join(rest), {}))
            place = _spell(chosen, row.point.values.get(chosen, ""))
            line.dots.setdefault(place, []).append(value)
    return chosen, list(lines.values())


def draw(axis: str, lines: Sequence[Line], metric: str) -> Image.Image:
    """The picture."""
    values = list(dict.fromkeys(value for line in lines for value in line.dots))
    numbers = [v for line in lines for dots in line.dots.values() for v in dots]
    legend = LEGEND if len(lines) > 1 else 0
    up = scales.fit(numbers, start=None, end=None, log=False)
    axes = Axes(Scale(0, 1), up, LEFT, WIDTH - RIGHT - legend, TOP, HEIGHT - BOTTOM)
    where = places(axis, values)
    canvas = Canvas(WIDTH, HEIGHT)
    canvas.text((LEFT, 14), f"{metric} over {axis}" if axis else metric, INK, size=15)
    if any(len(dots) > 1 for line in lines for dots in line.dots.values()):
        canvas.text((axes.right, 18), "hollow: a seed; filled: their mean", PALE, anchor="ra")
    percent = metric.endswith("accuracy")
    canvas.grid(axes, up.ticks(6), line=RULE, ink=PALE, percent=percent)
    _horizontal_axis(canvas, axes, axis, where)
    for number, line in enumerate(lines):
        aside = (number - (len(lines) - 1) / 2) * min(ASIDE, MOST_ASIDE / len(lines))
        joined = is_numeric(values) and axis != SEED
        _line(canvas, axes, where, line, COLOURS[number % len(COLOURS)], aside, joined=joined)
    if legend:
        _legend(canvas, lines)
    return canvas.finished()


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
    """Whether all values are finite numbers, no two of them equal."""
    try:
        numbers = [float(value) for value in values]
    except ValueError:
        return False
    return all(map(math.isfinite, numbers)) and len(set(numbers)) == len(numbers)


def _horizontal_axis(canvas: Canvas, axes: Axes, axis: str, where: Mapping[str, float]) -> None:
    canvas.line([(axes.left, axes.bottom), (axes.right, axes.bottom)], PALE)
    room = (axes.right - axes.left) / len(where)
    free_from = -math.inf
    for value, place in sorted(where.items(), key=lambda item: item[1]):
        x = axes.x(place)
        canvas.line([(x, axes.bottom), (x, axes.bottom + 4)], PALE)
        label = canvas.cut(value, max(room, LABEL))
        half = canvas.length(label) / 2
        if x - half > free_from:  # labels do not overlap; a tick without one stays
            canvas.text((x, axes.bottom + 8), label, PALE, anchor="mt")
            free_from = x + half + 6
    canvas.text(((axes.left + axes.right) / 2, HEIGHT - 10), axis, INK, anchor="mb")


def _line(
    canvas: Canvas,
    axes: Axes,
    where: Mapping[str, float],
    line: Line,
    colour: str,
    aside: float,
    *,
    joined: bool,
) -> None:
    """Draws seeds as hollow dots, and their means or single values as filled ones."""
    dots = sorted(line.dots.items(), key=lambda item: where[item[0]])
    means = [(axes.x(where[at]) + aside, axes.y(statistics.mean(values))) for at, values in dots]
    if len(means) > 1 and joined:
        canvas.line(means, colour, 2)
    for mean, (at, values) in zip(means, dots, strict=True):
        if len(values) > 1:
            x = axes.x(where[at]) + aside + SEEDS_ASIDE
            for value in values:
                canvas.dot((x, axes.y(value)), DOT - 0.5, PAPER, colour)
        canvas.dot(mean, DOT + 0.5, colour, colour)


def _legend(canvas: Canvas, lines: Sequence[Line]) -> None:
    left = WIDTH - LEGEND - 4
    for number, (text, colour) in enumerate(_named(lines)):
        y = TOP + 8 + number * LINE_HEIGHT
        if colour != PALE:
            canvas.line([(left, y), (left + 18, y)], colour, 2)
        canvas.text((left + 26, y), canvas.cut(text, LEGEND - 40), INK, anchor="lm")


def _named(lines: Sequence[Line]) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(lines[:MOST_LINES]):
        yield line.name, COLOURS[number % len(COLOURS)]
    if len(lines) > MOST_LINES:
        yield f"and {len(lines) - MOST_LINES} more", PALE


def _short(axis: str) -> str:
    """Shortens "optim.weight_decay" to "weight_decay"."""
    return axis.rpartition(".")[2]


def _spell(axis: str, value: str) -> str:
    """Shortens "configs/vit_digits.py" to "vit_digits"; keeps other values."""
    return value.rpartition("/")[2].replace(".py", "") if axis == CONFIG else value
