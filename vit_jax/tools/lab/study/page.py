"""results.html: a study on one page, with pictures as in arXiv 2010.11929, figures 4 and 5."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vit_jax.core.metric_names import is_percentage, words
from vit_jax.core.screen import format_significant
from vit_jax.draw import charts, html_page, style
from vit_jax.draw.html_page import Picture
from vit_jax.probes import scaling_law
from vit_jax.tools.lab.study import points, results
from vit_jax.tools.lab.study.results import FittedCurve, StudyResult

NOTES = {
    "compute": "Each model's line joins the trainings that no cheaper one of it is as good as, "
    "the steps those of all models. ExaFLOPs are 3 x forward matrix FLOPs x examples seen.",
    "examples": "The best of each model's durations on each number of different examples.",
}


def compute_figure(result: StudyResult) -> Figure:
    """All finished trainings over exaFLOPs, each model's frontier joined; figure 5."""
    series = []
    for model, losses in result.models.items():
        line = np.searchsorted([*losses], result.frontiers[model].points)
        series.append(_series(result, [*losses], "exaflops", line))
    best = result.frontier
    frontier = (best.exaflops, points.as_loss(result.metric, best.loss)) if series else None
    label = "training compute (exaFLOPs)"
    return _figure(result, series, "exaflops", x_label=label, against="compute", frontier=frontier)


def examples_figure(result: StudyResult) -> Figure:
    """Each model's best training on each number of examples; figure 4."""
    best = [results.best_by_examples(result.points, losses) for losses in result.models.values()]
    series = [_series(result, places, "examples", np.arange(len(places))) for places in best]
    return _figure(result, series, "examples", x_label="training examples", against="data")


def _figure(result: StudyResult, series: list[Series], over: str, **how: Any) -> Figure:
    laws = [fitted for fitted in result.laws if fitted.curve.over == over]
    return draw_scaling(series, laws, metric=result.metric, **how)


def _series(result: StudyResult, places: Sequence[int], over: str, line: np.ndarray) -> Series:
    first = result.points[places[0]]
    x = np.array([getattr(result.points[i].cost, over) for i in places], float)
    losses = result.models[first.model]
    y = points.as_loss(result.metric, np.array([losses[i] for i in places]))
    return Series(first.model, first.cost.family, x, y, line)


def pictures(result: StudyResult) -> list[Picture]:
    drawn = (("compute", "compute", compute_figure), ("examples", "data", examples_figure))
    return [
        Picture(name, _title(result.metric, against), NOTES[name], functools.partial(draw, result))
        for name, against, draw in drawn
    ]


def _title(metric: str, against: str) -> str:
    return f"{words(metric)}, against {against}"


def page(name: str, result: StudyResult) -> str:
    total = sum(point.cost.exaflops * point.trainings for point in result.points)
    return html_page.render(
        "tools/lab/study/page.html",
        title=name,
        subtitle=f"{words(result.metric)} · {result.config}",
        result=result,
        finished=sum(point.state == "finished" for point in result.points),
        total=format_significant(total),
        shown=pictures(result),
        stretches=[[*map(format_significant, ends), model] for *ends, model in result.stretches],
        optima=[results.describe_optimum(result, best) for best in result.optima],
        laws_head=results.LAWS,
        laws=results.laws(result),
        forms={law.form: scaling_law.FORMULAS[law.form] for _, law, *_ in result.laws if law},
        head=[*results.HEAD, words(result.metric), "frontier"],
        points=results.result_rows(result),
        level=f"{scaling_law.LEVEL:.0%}",
    )


_HEIGHT_IN = 4.4
MARKER = 6.5  # points
MOST_WIDER = 4.0  # an axis for the intervals of laws, than for the points


class Series(NamedTuple):
    name: str  # the model's, for the legend
    family: str  # models of one family have one colour
    # [n] each.
    x: np.ndarray
    y: np.ndarray
    line: np.ndarray  # [m] indices of the points that a line joins


@style.styled
def draw_scaling(
    series: Sequence[Series],
    curves: Sequence[FittedCurve] = (),
    *,
    metric: str,
    x_label: str,
    against: str,
    frontier: tuple[np.ndarray, np.ndarray] | None = None,
) -> Figure:
    """Points of models over a logarithmic axis, and laws, dashed where they are extrapolated.

    Colours are those of families where there are several, else of models; no two models have the
    same marker in the same colour. A stepped line joins `frontier`, the best (x, y) in ascending
    order. `against` says in the title what x is.
    """
    figure = style.blank(style.WIDTH_IN, _HEIGHT_IN)
    axes = figure.add_subplot()
    looks = _looks(series)
    laws = [curve for curve in curves if curve.law is not None]
    needed, bands = [points_of_model.y for points_of_model in series], []  # for the range of y
    for law in laws:
        # Of the interval's ends NaN remains NaN.
        y, low, high = (points.as_loss(metric, losses) for losses in law.interval)
        needed.append(y)
        bands += [low[np.isfinite(low)], high[np.isfinite(high)]]
        _draw_law(axes, law, y, (low, high), *looks.get(law.curve.name, (style.MUTED, "")))
    if any(law.curve.name in looks for law in laws):  # one entry for all
        axes.plot([], [], color=style.MUTED, lw=1.4, label="law of a model")
    for name, _, x, y, line in series:
        colour, marker = looks[name]
        axes.plot(x[line], y[line], color=colour, lw=1.2, alpha=0.7, zorder=2)
        look = {"color": colour, "mec": style.COLOURS["paper"], "mew": 0.6, "ms": MARKER}
        axes.plot(x, y, marker, **look, label=name, zorder=3)
    if frontier is not None:
        axes.step(
            *frontier, where="post", color=style.INK, lw=0.9, label="compute-optimal", zorder=1
        )
    axes.set_xscale("log")
    style.plain_log_ticks(axes.xaxis)
    axes.set_xlabel(x_label)
    axes.set_ylabel(words(metric))
    if is_percentage(metric):
        axes.yaxis.set_major_formatter(style.tick_labels(percent=True))
    if needed:
        ends, wide = (charts.limits(np.concatenate(x).tolist()) for x in (needed, needed + bands))
        shows_bands = np.ptp(wide) < MOST_WIDER * np.ptp(ends)  # else they are cut off
        axes.set_ylim(*(wide if shows_bands else ends))
    note = ""
    if any(law.extrapolated.any() for law in laws):
        banded = any(np.isfinite(law.interval.low).all() for law in laws)
        note = "dashed: extrapolated" + ("; bands: 90% intervals of the fit" if banded else "")
    style.entitle(figure, _title(metric, against), note)
    if series or laws:
        style.legend(figure, beside=True)
    return figure


def _looks(series: Sequence[Series]) -> dict[str, tuple[str, str]]:
    """(colour, marker) of each model, by name."""
    families = list(dict.fromkeys(model.family for model in series))
    if len(families) < 2:
        return {model.name: style.series(i) for i, model in enumerate(series)}
    # Markers go on from family to family, so that these differ without colour too.
    colours = [style.series(families.index(model.family))[0] for model in series]
    markers = itertools.cycle(style.MARKERS)
    looks = zip(series, colours, markers, strict=False)
    return {model.name: (colour, marker) for model, colour, marker in looks}


def _draw_law(
    axes: Axes,
    fitted: FittedCurve,
    y: np.ndarray,
    interval: tuple[np.ndarray, np.ndarray],
    colour: str,
    marker: str,
) -> None:
    """The law; that of one model ends in the model's marker, empty."""
    x, inside, beyond = fitted.x, ~fitted.extrapolated, fitted.extrapolated.copy()
    if inside.any():
        beyond[np.flatnonzero(inside)[-1]] = True  # the lines meet
    name = None if marker else f"law of {fitted.curve.name}"
    axes.plot(x[inside], y[inside], color=colour, lw=1.4, zorder=1.5, label=name)
    axes.plot(x[beyond], y[beyond], color=colour, lw=1.4, zorder=1.5, dashes=(4, 3))
    if marker:
        axes.plot(
            x[-1], y[-1], marker, color=colour, mfc=style.COLOURS["paper"], ms=MARKER, zorder=1.6
        )
    if np.isfinite(interval[0]).all():
        axes.fill_between(x, *interval, color=colour, alpha=0.07, lw=0, zorder=1)
