"""results.png: the metric over one axis, a line for each combination of the others.

Seeds are hollow dots beside their mean, which the line goes through; where the axis has no order
there is no line.
"""

from __future__ import annotations

import io
import math
import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from etils import epath
from PIL import Image, ImageDraw, ImageFont

from vit_jax.draw import scales
from vit_jax.store import workdir
from vit_jax.sweep.grid import CONFIG
from vit_jax.sweep.progress import Progress
from vit_jax.sweep.results import SEED, axes_of

PNG_FILE = "results.png"

SCALE = 3  # drawn larger and shrunk, so that lines are smooth
# In pixels of the finished picture.
WIDTH, HEIGHT, LEFT, TOP, BOTTOM, RIGHT = 760, 420, 64, 56, 52, 28
LEGEND = 200  # at the right, if there are several lines
DOT, LINE_HEIGHT = 3.5, 20
ASIDE, MOST_ASIDE = 12, 60  # between lines at one place, so that dots do not hide each other
SEEDS_ASIDE = 5  # beside their mean
PAPER, INK, PALE, RULE = "#ffffff", "#1b1b1b", "#6a6a6a", "#e4e4e4"
COLOURS = ("#3366cc", "#cc3333", "#229944", "#e08a00", "#8844bb", "#1199aa", "#a05a2c", "#777777")
MOST_LINES = 16  # that are named
FEWEST_FACTOR = 8  # between the ends of a logarithmic axis

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


class Line(NamedTuple):
    """A curve: its name, and the metric's values at each place of the axis."""

    name: str
    dots: dict[str, list[float]]  # value on the axis -> of every seed


class Layout(NamedTuple):
    """Where things are.

    Attributes:
      places: each value of the horizontal axis, 0 to 1.
      across, up: the axes' sizes in pixels.
    """

    places: dict[str, float]
    scale: scales.Scale
    across: float
    up: float = HEIGHT - TOP - BOTTOM

    def at(self, where: str, value: float, aside: float = 0.0) -> tuple[float, float]:
        """Pixels of the large picture; `aside`: pixels of the finished one, to the right."""
        x = LEFT + self.across * self.places[where] + aside
        return x * SCALE, (TOP + self.up * (1 - self.scale.place(value))) * SCALE


def write(file: epath.Path, rows: Sequence[Progress], metric: str) -> bool:
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


def curves(rows: Sequence[Progress], metric: str) -> tuple[str, list[Line]]:
    """The horizontal axis, and the lines over it.

    The axis is the one of numbers with most values, not the seed if there is another.
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
    where = list(dict.fromkeys(place for line in lines for place in line.dots))
    values = [v for line in lines for dots in line.dots.values() for v in dots]
    legend = LEGEND if len(lines) > 1 else 0
    layout = Layout(
        places(axis, where),
        scales.fit(values, start=None, end=None, log=False),
        across=WIDTH - LEFT - RIGHT - legend,
    )
    image = Image.new("RGB", (WIDTH * SCALE, HEIGHT * SCALE), PAPER)
    pen = ImageDraw.Draw(image)
    large, small = (ImageFont.load_default(size * SCALE) for size in (15, 12))
    title = f"{metric} over {axis}" if axis else metric
    pen.text((LEFT * SCALE, 14 * SCALE), title, INK, large)
    if any(len(dots) > 1 for line in lines for dots in line.dots.values()):
        note = "hollow: a seed; filled: their mean"
        pen.text(((LEFT + layout.across) * SCALE, 18 * SCALE), note, PALE, small, anchor="ra")
    _axes(pen, layout, axis, metric, small)
    for number, line in enumerate(lines):
        aside = (number - (len(lines) - 1) / 2) * min(ASIDE, MOST_ASIDE / len(lines))
        joined = is_numeric(where) and axis != SEED
        _line(pen, layout, line, COLOURS[number % len(COLOURS)], aside, joined=joined)
    if legend:
        _legend(pen, lines, small)
    return image.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS)


def places(axis: str, values: Sequence[str]) -> dict[str, float]:
    """Where each value stands, 0 to 1: by its logarithm, by its size, or one after the other."""
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
    """Whether all are finite numbers, no two of them equal."""
    try:
        numbers = [float(value) for value in values]
    except ValueError:
        return False
    return all(map(math.isfinite, numbers)) and len(set(numbers)) == len(numbers)


def _axes(pen: ImageDraw.ImageDraw, layout: Layout, axis: str, metric: str, font: Font) -> None:
    ticks = layout.scale.ticks(6)
    left, right = LEFT * SCALE, (LEFT + layout.across) * SCALE
    named = scales.labels(ticks, percent=metric.endswith("accuracy"))
    for tick, label in zip(ticks, named, strict=True):
        y = (TOP + layout.up * (1 - layout.scale.place(tick))) * SCALE
        pen.line([(left, y), (right, y)], RULE, SCALE)
        pen.text((left - 8 * SCALE, y), label, PALE, font, anchor="rm")
    bottom, taken = (HEIGHT - BOTTOM) * SCALE, -math.inf
    pen.line([(left, bottom), (right, bottom)], PALE, SCALE)
    room = layout.across / len(layout.places) * SCALE
    for value, place in sorted(layout.places.items(), key=lambda item: item[1]):
        x = (LEFT + layout.across * place) * SCALE
        pen.line([(x, bottom), (x, bottom + 4 * SCALE)], PALE, SCALE)
        label = _cut(value, font, max(room, 60 * SCALE))
        half = font.getlength(label) / 2
        if x - half > taken:  # labels do not overlap; the tick without one stays
            pen.text((x, bottom + 8 * SCALE), label, PALE, font, anchor="mt")
            taken = x + half + 6 * SCALE
    middle = (left + right) / 2
    pen.text((middle, (HEIGHT - 10) * SCALE), axis, INK, font, anchor="mb")


def _line(
    pen: ImageDraw.ImageDraw,
    layout: Layout,
    line: Line,
    colour: str,
    aside: float,
    *,
    joined: bool,
) -> None:
    ordered = sorted(line.dots.items(), key=lambda item: layout.places[item[0]])
    means = [layout.at(place, statistics.mean(dots), aside) for place, dots in ordered]
    if len(means) > 1 and joined:
        pen.line(means, colour, 2 * SCALE, joint="curve")
    for mean, (place, dots) in zip(means, ordered, strict=True):
        if len(dots) > 1:
            for value in dots:
                _dot(pen, layout.at(place, value, aside + SEEDS_ASIDE), colour, hollow=True)
        _dot(pen, mean, colour)


def _dot(
    pen: ImageDraw.ImageDraw, at: tuple[float, float], colour: str, *, hollow: bool = False
) -> None:
    """A filled dot stands for a mean or an only value, a hollow one for a seed."""
    size = (DOT - 0.5 if hollow else DOT + 0.5) * SCALE
    box = (at[0] - size, at[1] - size, at[0] + size, at[1] + size)
    pen.ellipse(box, PAPER if hollow else colour, colour, width=round(1.2 * SCALE))


def _legend(pen: ImageDraw.ImageDraw, lines: Sequence[Line], font: Font) -> None:
    left = (WIDTH - LEGEND - 4) * SCALE
    for number, (text, colour) in enumerate(_named(lines)):
        y = (TOP + 8 + number * LINE_HEIGHT) * SCALE
        if colour != PALE:
            pen.line([(left, y), (left + 18 * SCALE, y)], colour, 2 * SCALE)
        shown = _cut(text, font, (LEGEND - 40) * SCALE)
        pen.text((left + 26 * SCALE, y), shown, INK, font, anchor="lm")


def _named(lines: Sequence[Line]) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(lines[:MOST_LINES]):
        yield line.name, COLOURS[number % len(COLOURS)]
    if len(lines) > MOST_LINES:
        yield f"and {len(lines) - MOST_LINES} more", PALE


def _cut(text: str, font: Font, room: float) -> str:
    shown = text
    while font.getlength(shown) > room and len(text) > 1:
        text = text[:-1]
        shown = f"{text}…"
    return shown


def _short(axis: str) -> str:
    """ "optim.weight_decay" -> "weight_decay"."""
    return axis.rpartition(".")[2]


def _spell(axis: str, value: str) -> str:
    """ "configs/vit_digits.py" -> "vit_digits"; other values as they are."""
    return value.rpartition("/")[2].replace(".py", "") if axis == CONFIG else value
