"""results.png: the metric over one axis, a line for each combination of the others.

Seeds are hollow dots beside their mean, which the line goes through; an axis without an order has
no line.
"""

import io
import math
import statistics
from collections.abc import Mapping, Sequence

from etils import epath
from PIL import Image

from vit_jax.draw import scales
from vit_jax.draw.canvas import COLOURS, INK, PALE, RULE, Canvas
from vit_jax.draw.scales import Axes, Scale
from vit_jax.store import workdir
from vit_jax.tools.lab.sweep.grid import CONFIG
from vit_jax.tools.lab.sweep.progress import PointProgress
from vit_jax.tools.lab.sweep.results import SEED

PNG_FILE = "results.png"

WIDTH, HEIGHT, LEFT, TOP, BOTTOM, RIGHT = 760, 420, 64, 56, 52, 28  # in pixels
LEGEND = 200  # at the right, if there are several lines
DOT, LINE_HEIGHT = 3.5, 20
ASIDE, MOST_ASIDE = 12, 60  # between lines at one place, so that dots do not hide each other
SEEDS_ASIDE = 5  # from their mean
LABEL = 60  # the least room of a label on the horizontal axis
PAPER = "#ffffff"
MOST_LINES = 16  # named in the legend
FEWEST_FACTOR = 8  # between the ends of a logarithmic axis


Dots = dict[str, list[float]]  # of a line: value on the axis -> metric of every seed


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


def curves(rows: Sequence[PointProgress], metric: str) -> tuple[str, dict[str, Dots]]:
    """The horizontal axis, and the lines over it, by name.

    The axis is the numeric one with most values, not the seed if there is another.
    """
    axes = list(rows[0].point.values)
    others = [axis for axis in axes if axis != SEED] or axes
    values = {axis: list(dict.fromkeys(row.point.values[axis] for row in rows)) for axis in others}
    chosen = max(others, key=lambda a: (is_numeric(values[a]), len(values[a])), default="")
    lines: dict[str, Dots] = {}
    for row in rows:
        value = row.numbers.get(metric, math.nan)
        if row.state == "finished" and math.isfinite(value):
            spelt = {a: _spell(a, row.point.values[a]) for a in others}
            place = spelt.pop(chosen, "")
            name = ", ".join(f"{a.rpartition('.')[2]} {v}" for a, v in spelt.items())
            lines.setdefault(name, {}).setdefault(place, []).append(value)
    return chosen, lines


def draw(axis: str, lines: Mapping[str, Dots], metric: str) -> Image.Image:
    """The picture."""
    values = list(dict.fromkeys(value for dots in lines.values() for value in dots))
    seeds = [each for dots in lines.values() for each in dots.values()]
    legend = LEGEND if len(lines) > 1 else 0
    up = scales.fit([v for each in seeds for v in each], start=None, end=None, log=False)
    axes = Axes(Scale(0, 1), up, LEFT, WIDTH - RIGHT - legend, TOP, HEIGHT - BOTTOM)
    where = places(axis, values)
    canvas = Canvas(WIDTH, HEIGHT)
    canvas.text((LEFT, 14), f"{metric} over {axis}" if axis else metric, INK, size=15)
    if any(len(each) > 1 for each in seeds):
        canvas.text((axes.right, 18), "hollow: a seed; filled: their mean", PALE, anchor="ra")
    percent = metric.endswith("accuracy")
    canvas.grid(axes, up.ticks(6), line=RULE, ink=PALE, percent=percent)
    _horizontal_axis(canvas, axes, axis, where)
    for number, dots in enumerate(lines.values()):
        aside = (number - (len(lines) - 1) / 2) * min(ASIDE, MOST_ASIDE / len(lines))
        joined = is_numeric(values) and axis != SEED
        _line(canvas, axes, where, dots, COLOURS[number % len(COLOURS)], aside, joined=joined)
    if legend:
        _legend(canvas, list(lines))
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
    dots: Dots,
    colour: str,
    aside: float,
    *,
    joined: bool,
) -> None:
    """Draws seeds as hollow dots, and their means or single values as filled ones."""
    ordered = sorted(dots.items(), key=lambda item: where[item[0]])
    means = [(axes.x(where[at]) + aside, axes.y(statistics.mean(each))) for at, each in ordered]
    if len(means) > 1 and joined:
        canvas.line(means, colour, 2)
    for mean, (at, values) in zip(means, ordered, strict=True):
        if len(values) > 1:
            x = axes.x(where[at]) + aside + SEEDS_ASIDE
            for value in values:
                canvas.dot((x, axes.y(value)), DOT - 0.5, PAPER, colour)
        canvas.dot(mean, DOT + 0.5, colour, colour)


def _legend(canvas: Canvas, names: Sequence[str]) -> None:
    left, more = WIDTH - LEGEND - 4, len(names) - MOST_LINES
    shown = [*names[:MOST_LINES], *([f"and {more} more"] if more > 0 else [])]
    for number, text in enumerate(shown):
        y = TOP + 8 + number * LINE_HEIGHT
        if number < MOST_LINES:
            canvas.line([(left, y), (left + 18, y)], COLOURS[number % len(COLOURS)], 2)
        canvas.text((left + 26, y), canvas.cut(text, LEGEND - 40), INK, anchor="lm")


def _spell(axis: str, value: str) -> str:
    """Shortens "configs/vit_digits.py" to "vit_digits"; keeps other values."""
    return value.rpartition("/")[2].replace(".py", "") if axis == CONFIG else value
