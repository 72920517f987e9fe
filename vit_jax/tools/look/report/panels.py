"""The numbers of the log that are drawn, with their titles and kinds of axes, and their charts."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from markupsafe import Markup
from matplotlib.axes import Axes

from vit_jax.core.metric_names import words
from vit_jax.draw import charts
from vit_jax.store.metrics import evaluation
from vit_jax.store.runs import Run, Series

# Layers and blocks have hundreds of curves: TensorBoard shows them.
TOO_MANY = ("gradients", "activations")


class Style(NamedTuple):
    title: str = ""  # by default that of `words`
    percent: bool = False  # True for shares of 1, shown in percent
    # Ends of the axis, if no value is beyond.
    start: float | None = None
    end: float | None = None
    log: bool = False  # True for a logarithmic axis if the values differ by a large factor
    exact: bool = False  # True for numbers without noise, of which no means are drawn
    only_if_any: bool = False  # True to leave out numbers that are all 0


class Panel(NamedTuple):
    """A picture: one number of one or several runs."""

    key: str  # key in metrics.jsonl
    title: str
    style: Style
    lines: dict[int, Series]  # lines by the index of the run
    name: str = ""  # name of these lines, beside `others`
    # Lines of other keys by name, such as an evaluation's beside the training's.
    others: Mapping[str, dict[int, Series]] = {}

    @property
    def parts(self) -> dict[str, dict[int, Series]]:
        """All lines, by their name."""
        return {self.name: self.lines, **self.others}

    @property
    def every_line(self) -> list[Series]:
        return [line for lines in self.parts.values() for line in lines.values()]


_NUMBER = re.compile(r"(?<!_l)\d+")  # but for that of l2
RESULTS, OTHER = "Loss and accuracy", "Other results"
EVALUATION = "*"  # instead of an evaluation's name

# In the order of the page. "#" is any number.
SECTIONS: dict[str, dict[str, Style]] = {
    RESULTS: {
        "train/loss": Style("training loss", log=True),
        "*/loss": Style(log=True),
        "train/accuracy": Style("training accuracy", percent=True),
        "*/accuracy": Style(percent=True),
        "*/top#_accuracy": Style(percent=True),
        "*/ece": Style(start=0.0),
    },
    "Features": {
        "*/#shot_accuracy": Style(percent=True),
        "*/#shot_chosen_l2_accuracy": Style(percent=True),
        "*/knn#_accuracy": Style(percent=True),
        "*/probe_accuracy": Style(percent=True),
        "*/sgd_probe_accuracy": Style(percent=True),
        "*/rank_me": Style(start=0.0),
        "*/filters_explained": Style(percent=True),
        "*/positions_row_plus_column": Style(percent=True),
        "*/first_distance_px": Style(start=0.0),
        "*/last_distance_px": Style(start=0.0),
        "*/high_norm_share": Style(percent=True, start=0.0),
    },
    "Optimisation": {
        "train/learning_rate": Style("learning rate", start=0.0, exact=True),
        "train/grad_norm": Style("gradient norm", start=0.0, log=True),
        "train/effective_weight_decay": Style("effective weight decay", start=0.0, exact=True),
    },
    "Speed and input": {
        "speed/images_per_second": Style("images per second", start=0.0),
        "speed/input_wait": Style("input wait", percent=True, start=0.0, end=1.0),
        "speed/mfu": Style("MFU", percent=True, start=0.0),
        "speed/compiling_secs": Style("seconds of compiling", start=0.0),
        "speed/evaluating_secs": Style("seconds of evaluations", start=0.0),
        "speed/saving_secs": Style("seconds of saving", start=0.0),
        "input/skipped_images": Style("skipped images", start=0.0, only_if_any=True),
        "*/skipped_images": Style(start=0.0, only_if_any=True),
        "*/unlabelled_images": Style(start=0.0, only_if_any=True),
    },
    OTHER: {},
}
MOST_TOGETHER = 4  # numbers in one picture
NOT_DRAWN = ("*/examples", "*/#shot_deviation", "*/probe_l2", "*/sgd_probe_lr")


def evaluations(runs: Sequence[Run]) -> list[str]:
    """The evaluations of all runs, in order of first appearance."""
    names = (evaluation(key) for run in runs for key in run.series)
    return list(dict.fromkeys(name for name in names if name))


def arrange(runs: Sequence[Run]) -> dict[str, list[Panel]]:
    """Panels by section, for all that any run has logged."""
    keys = list(dict.fromkeys(key for run in runs for key in run.series))
    arranged: dict[str, list[Panel]] = {}
    for section, styles in SECTIONS.items():
        for pattern, style in styles.items():
            matching = [key for key in keys if _pattern(key) == pattern]
            arranged.setdefault(section, []).extend(_panels(matching, style, runs))
    known = {pattern for styles in SECTIONS.values() for pattern in styles} | set(NOT_DRAWN)
    rest = [key for key in keys if _pattern(key) not in known and not _is_too_many(key)]
    for key in rest:
        arranged.setdefault(OTHER, []).extend(_panels([key], Style(log=True), runs))
    # With more runs than colours the dashes of an evaluation would be those of a further run.
    for name in ("loss", "accuracy") if len(runs) <= len(charts.RUNS) else ():
        arranged[RESULTS] = _together(arranged[RESULTS], name, len(runs))
    return {section: panels for section, panels in arranged.items() if panels}


def _together(panels: list[Panel], name: str, num_runs: int) -> list[Panel]:
    """Joins the panels of training and evaluations, of several runs that of the first one."""
    same = [each for each in panels if each.key.endswith(f"/{name}")]
    same = same[: MOST_TOGETHER if num_runs == 1 else 2]
    if len(same) < 2 or (num_runs > 1 and evaluation(same[0].key)):
        return panels
    first = same[0]
    names = [evaluation(each.key) or "training" for each in same]
    others = {name: each.lines for name, each in zip(names[1:], same[1:], strict=True)}
    keys = ", ".join(each.key for each in same)
    one = Panel(keys, name, first.style, first.lines, names[0], others)
    return [one if each is first else each for each in panels if each not in same[1:]]


def left_out(runs: Sequence[Run]) -> int:
    return len({key for run in runs for key in run.series if _is_too_many(key)})


def _is_too_many(key: str) -> bool:
    return key.partition("/")[0] in TOO_MANY


def _pattern(key: str) -> str:
    name = evaluation(key)
    if name is None:
        return key
    number = key.removeprefix(name)
    return EVALUATION + _NUMBER.sub("#", number)


def _panels(keys: Sequence[str], style: Style, runs: Sequence[Run]) -> list[Panel]:
    result = []
    for key in keys:
        lines = {i: run.series[key] for i, run in enumerate(runs) if key in run.series}
        if style.only_if_any and not any(any(line.values) for line in lines.values()):
            continue
        title = style.title or words(key)
        result.append(Panel(key, title, style, lines))
    return result


# In CSS pixels; page.js has them too.
SIZE = 330, 206
LEFT, RIGHT, TOP, BOTTOM = 50, 322, 10, 164
COLUMNS = 300  # no more points are kept than these many columns can show
MEANS = 80  # of a noisy curve with more points, through which its line goes

# Values differ so much that on a linear axis most of them would lie on one line.
LOG_FACTOR = 30
DOTS = 40  # a line of at most this many points has dots


@charts.styled
def draw(panel: Panel, last_step: int, num_runs: int) -> dict[str, Any]:
    """Draws a panel up to `last_step`, in colours of runs or parts; the picture, and its axes."""
    axes = charts.blank(SIZE, (LEFT, RIGHT, TOP, BOTTOM))
    charts.scale(axes.xaxis, 0, max(last_step, 1))
    axes.set_xlabel("step")
    is_log = _scale_vertically(axes, panel)
    groups: dict[str, tuple[Markup, str]] = {}
    for number, (name, lines) in enumerate(panel.parts.items()):
        for run, series in lines.items():
            look = Look(number, 0) if num_runs == 1 else Look(run, number)
            groups |= _draw_line(axes, run, name, series, panel.style, look)
    low, high = axes.get_ylim()
    return {
        "panel": panel,
        "picture": charts.svg(axes, panel.title, groups),
        "log": is_log,
        "parts": list(panel.parts) if panel.others else [],
        "low": float(low),
        "high": float(high),
        "last": float(axes.get_xlim()[1]),
    }


def has_means(series: Series, style: Style) -> bool:
    return not style.exact and len(series.steps) > 2 * MEANS


def _scale_vertically(axes: Axes, panel: Panel) -> bool:
    """Sets the vertical axis; True if it is logarithmic."""
    style = panel.style
    values = [v for line in panel.every_line for v in line.values if not math.isnan(v)]
    log = style.log and bool(values) and min(values) > 0 and max(values) / min(values) >= LOG_FACTOR
    low, high = 0.0, 1.0
    if values:
        low, high = charts.limits(values, start=style.start, end=style.end, log=log)
        if style.percent:  # no margin beyond 0 and 100 %
            low, high = max(low, min(0.0, *values)), min(high, max(1.0, *values))
    charts.scale(axes.yaxis, low, high, log=log, percent=style.percent)
    return log


class Look(NamedTuple):
    number: int
    turn: int

    @property
    def dashes(self) -> tuple[float, ...]:
        return charts.dashes(self.number + self.turn * len(charts.RUNS))


def _draw_line(
    axes: Axes, run: int, part: str, series: Series, style: Style, by: Look
) -> dict[str, tuple[Markup, str]]:
    """Draws the line of a run through means of its noise; attributes of the groups, by id."""
    last_step = int(axes.get_xlim()[1])
    kept = thin(series, last_step=last_step, columns=COLUMNS)
    look = {"color": charts.RUNS[by.number % len(charts.RUNS)], "solid_capstyle": "round"}
    hovered, mark = kept, Markup()
    attributes = Markup('class="line run{}" data-run="{}"').format(by.number, run)
    name = f"{run}_{by.number}_{by.turn}"
    groups = {f"pale{name}": (attributes, ""), f"bad{name}": (attributes, "not finite")}
    if has_means(series, style):
        hovered, mark = means(series, last_step=last_step, columns=MEANS), Markup(" data-means")
        axes.plot(*kept, **look, alpha=0.3, lw=1, gid=f"pale{name}")
    finite = [not math.isnan(value) for value in hovered.values]
    dotted = [i for i, is_finite in enumerate(finite) if is_finite]
    if len(dotted) > DOTS:  # only those without neighbours, of which there is no line
        dotted = [i for i in dotted if not any(finite[max(i - 1, 0) : i] + finite[i + 1 : i + 2])]
    (line,) = axes.plot(
        *hovered, **look, marker="o", ms=4, mew=0, markevery=dotted, gid=f"run{name}"
    )
    if by.dashes:  # hollow dots: a single point has no dashes
        line.set(linestyle=(0, by.dashes), mfc=charts.COLOURS["card"], mew=1.4)
    bad = [step for step, value in zip(*kept, strict=True) if math.isnan(value)]
    if bad:
        at_bottom = axes.get_xaxis_transform()
        heights = [3 / (BOTTOM - TOP)] * len(bad)
        axes.plot(bad, heights, "x", **look, ms=6, mew=1.6, transform=at_bottom, gid=f"bad{name}")
    values = [None if math.isnan(v) else float(f"{v:.5g}") for v in hovered.values]
    points = json.dumps([hovered.steps, values], separators=(",", ":"))
    numbers = Markup(' data-look="{}" data-part="{}" data-points="{}"{}')
    return groups | {f"run{name}": (attributes + numbers.format(by.number, part, points, mark), "")}


def thin(series: Series, *, last_step: int, columns: int) -> Series:
    """Keeps the last point and at most 3 a column: the lowest, the highest and the first NaN."""
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
    """Means of the finite values of each column, at the middle one of its steps."""
    averaged = Series([], [])
    for points in _columns(series, last_step, columns):
        finite = [v for v in (series.values[i] for i in points) if not math.isnan(v)]
        averaged.steps.append(series.steps[points[len(points) // 2]])
        averaged.values.append(math.fsum(finite) / len(finite) if finite else math.nan)
    return averaged


def _columns(series: Series, last_step: int, columns: int) -> list[list[int]]:
    in_column = [step * columns // (last_step + 1) for step in series.steps]
    return [list(points) for _, points in groupby(range(len(in_column)), in_column.__getitem__)]
