"""results.html: a study on one page, with pictures as in arXiv 2010.11929, figures 4 and 5."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from etils import epath
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from vit_jax.draw import html_page, style
from vit_jax.draw.html_page import Picture
from vit_jax.probes import scaling_law
from vit_jax.store import workdir
from vit_jax.tools.lab.study import points, results
from vit_jax.tools.lab.study.results import FittedCurve, StudyResult

FILE = "results.html"
COMPUTE_PNG, EXAMPLES_PNG = "compute.png", "examples.png"
NOTES = {
    COMPUTE_PNG: "Each model's line joins the trainings that no cheaper one of it is as good as, "
    "the steps those of all models. ExaFLOPs are 3 x forward matrix FLOPs x examples seen.",
    EXAMPLES_PNG: "The best of each model's durations on each number of different examples.",
}


def write(folder: epath.Path, made: StudyResult) -> None:
    """Writes the page and its two pictures. UserError if it cannot."""
    pictures = {COMPUTE_PNG: compute_picture(made), EXAMPLES_PNG: examples_picture(made)}
    for name, data in pictures.items():
        workdir.save(folder / name, data)
    workdir.save(folder / FILE, page(folder.name, made, pictures))


def compute_picture(made: StudyResult) -> bytes:
    """PNG of all finished trainings over exaFLOPs, each model's frontier joined; figure 5."""
    losses = made.scored
    series = []
    for model, mine in _by_model(made).items():
        x = [made.points[i].cost.exaflops for i in mine]
        on_frontier = made.frontiers[model].points.tolist()
        line = np.array([mine.index(i) for i in on_frontier])
        series.append(_series(made, mine, x, [losses[i] for i in mine], line))
    best = np.array([made.points[i].cost.exaflops for i in made.best])
    scores = np.array([points.as_loss(made.metric, losses[i]) for i in made.best])
    return _picture(
        made, series, "exaflops", "training compute (exaFLOPs)", "compute", (best, scores)
    )


def examples_picture(made: StudyResult) -> bytes:
    """PNG of each model's best training on each number of examples; figure 4."""
    losses = made.scored
    series = []
    for mine in _by_model(made).values():
        best: dict[int, int] = {}
        for i in mine:
            examples = made.points[i].cost.examples
            if losses[i] < losses.get(best.get(examples, -1), np.inf):
                best[examples] = i
        kept = [best[examples] for examples in sorted(best)]
        x = [made.points[i].cost.examples for i in kept]
        line = np.arange(len(kept))
        series.append(_series(made, kept, x, [losses[i] for i in kept], line))
    return _picture(made, series, "examples", "training examples", "data")


def _by_model(made: StudyResult) -> dict[str, list[int]]:
    """Numbers of the finished points of each model."""
    models: dict[str, list[int]] = {}
    for i in made.scored:
        models.setdefault(made.points[i].model, []).append(i)
    return models


def _series(
    made: StudyResult,
    mine: Sequence[int],
    x: Sequence[float],
    loss: Sequence[float],
    line: np.ndarray,
) -> Series:
    first = made.points[mine[0]]
    y = np.array([points.as_loss(made.metric, each) for each in loss])
    return Series(first.model, first.cost.family, np.array(x, float), y, line)


def _picture(
    made: StudyResult,
    series: Sequence[Series],
    over: str,
    x_label: str,
    against: str,
    frontier: tuple[np.ndarray, np.ndarray] | None = None,
) -> bytes:
    laws = [
        _law(made, each) for each in made.laws if each.curve.over == over and each.law is not None
    ]
    figure = draw_scaling(
        series,
        laws,
        x_label=x_label,
        y_label=made.metric,
        title=f"{made.metric} against {against}",
        percent=made.metric.endswith("accuracy"),
        frontier=frontier if frontier and len(frontier[0]) else None,
    )
    return style.png(figure)


def _law(made: StudyResult, each: FittedCurve) -> Law:
    assert each.law is not None
    assert each.interval is not None
    y, low, high = (np.array(_as_metric(made, values)) for values in each.interval)
    return Law(each.curve.name, each.x, y, low, high, each.extrapolated)


def _as_metric(made: StudyResult, losses: np.ndarray) -> list[float]:
    return [points.as_loss(made.metric, float(loss)) for loss in losses]


def page(name: str, made: StudyResult, pictures: dict[str, bytes]) -> str:
    """The text of the file."""
    losses, best = made.scored, set(made.best)
    rows = [
        [
            each.title,
            each.cost.family,
            *results.sizes(each),
            made.shown(losses[i]) if i in losses else "-",
            each.state,
            str(each.seeds),
            "yes" if i in best else "",
        ]
        for i, each in enumerate(made.points)
    ]
    total = sum(each.cost.exaflops * max(each.seeds, 1) for each in made.points)
    return html_page.render(
        "tools/lab/study/page.html",
        title=name,
        subtitle=f"{made.metric} · {made.config}",
        made=made,
        finished=sum(each.state == "finished" for each in made.points),
        total=f"{total:.3g}",
        shown=[Picture("", "", note, pictures[file], wide=True) for file, note in NOTES.items()],
        stretches=[[f"{s.low:.3g}", f"{s.high:.3g}", s.model] for s in made.stretches],
        optima=[results.optimum_line(made, each) for each in made.optima],
        laws=[results.law_line(made, law) for law in made.laws],
        head=["model", "family", *results.SIZES, made.metric, "state", "seeds", "frontier"],
        points=rows,
        level=f"{scaling_law.LEVEL:.0%}",
    )


_HEIGHT_IN = 4.4


class Series(NamedTuple):
    """The points of a model.

    Attributes:
      name: the model's, for the legend.
      family: models of one family have one colour.
      x, y: [n] each.
      line: [m] indices of the points that a line joins.
    """

    name: str
    family: str
    x: np.ndarray
    y: np.ndarray
    line: np.ndarray


class Law(NamedTuple):
    """A fitted curve over x [N].

    Attributes:
      name: the model's, or of all of them.
      y, low, high: the curve and its interval [N]; NaN: none.
      extrapolated: [N] bool.
    """

    name: str
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray
    high: np.ndarray
    extrapolated: np.ndarray


@style.styled
def draw_scaling(
    series: Sequence[Series],
    laws: Sequence[Law] = (),
    *,
    x_label: str,
    y_label: str,
    title: str,
    percent: bool = False,
    frontier: tuple[np.ndarray, np.ndarray] | None = None,
) -> Figure:
    """Points of models over a logarithmic axis, and laws, dashed where they are extrapolated.

    Colours are those of families where there are several, else of models; no two models have the
    same marker in the same colour.

    Args:
      series: the models.
      laws: fitted to them.
      x_label, y_label: with the unit.
      title: above all.
      percent: y is a share, shown in percent.
      frontier: (x, y) of the best points for their compute, in ascending order, which a stepped
        line joins.
    """
    figure = style.blank(style.WIDTH_IN, _HEIGHT_IN)
    figure.suptitle(title, x=0.02, ha="left")
    axes = figure.add_subplot()
    looks = _looks(series)
    for law in laws:
        _draw_law(axes, law, *looks.get(law.name, (style.MUTED, "")))
    if any(law.name in looks for law in laws):  # one entry for all: each ends in its marker
        axes.plot([], [], color=style.MUTED, lw=1.4, label="law of a model")
    for each in series:
        _draw_points(axes, each, *looks[each.name])
    if frontier is not None:
        axes.step(*frontier, where="post", color="black", lw=0.9, label="compute-optimal", zorder=1)
    axes.set_xscale("log")
    style.plain_log_ticks(axes.xaxis)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    if percent:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{100 * y:g} %"))
    _keep_to_points(axes, series, laws)
    if any(law.extrapolated.any() for law in laws):
        banded = any(np.isfinite(law.low).all() for law in laws)
        note = "dashed: extrapolated" + ("; bands: 90 % intervals of the fit" if banded else "")
        axes.set_title(note, loc="left", size=style.SMALL, color=style.MUTED)
    if series or laws:
        figure.legend(loc="outside right upper")
    return figure


def _looks(series: Sequence[Series]) -> dict[str, tuple[str, str]]:
    """(colour, marker) of each model, by name."""
    families = list(dict.fromkeys(each.family for each in series))
    if len(families) < 2:
        return {each.name: style.series(i) for i, each in enumerate(series)}
    # Markers go on from family to family, so that these differ without colour too.
    return {
        each.name: (
            style.series(families.index(each.family))[0],
            style.MARKERS[i % len(style.MARKERS)],
        )
        for i, each in enumerate(series)
    }


def _draw_points(axes: Axes, each: Series, colour: str, marker: str) -> None:
    axes.plot(each.x[each.line], each.y[each.line], color=colour, lw=1.2, alpha=0.7, zorder=2)
    name = f"{each.name} ({each.family})"
    axes.plot(each.x, each.y, marker, color=colour, mec="white", mew=0.6, label=name, zorder=3)


def _draw_law(axes: Axes, law: Law, colour: str, marker: str) -> None:
    """The law; that of one model ends in the model's marker, empty."""
    inside, beyond = ~law.extrapolated, law.extrapolated.copy()
    if inside.any():
        beyond[np.flatnonzero(inside)[-1]] = True  # the lines meet
    name = None if marker else f"law of {law.name}"
    axes.plot(law.x[inside], law.y[inside], color=colour, lw=1.4, zorder=1.5, label=name)
    axes.plot(law.x[beyond], law.y[beyond], color=colour, lw=1.4, zorder=1.5, dashes=(4, 3))
    if marker:
        axes.plot(law.x[-1], law.y[-1], marker, color=colour, mfc="white", ms=5, zorder=1.6)
    if np.isfinite(law.low).all():
        axes.fill_between(law.x, law.low, law.high, color=colour, alpha=0.13, lw=0, zorder=1)


def _keep_to_points(axes: Axes, series: Sequence[Series], laws: Sequence[Law]) -> None:
    """The range of y that points and laws need; wide intervals are cut off."""
    needed = [each.y for each in series] + [each.y for each in laws]
    if not needed:
        return
    values = np.concatenate(needed)
    low, high = float(values.min()), float(values.max())
    room = 0.08 * (high - low) or 0.05 * abs(high) or 0.05
    axes.set_ylim(low - room, high + room)
