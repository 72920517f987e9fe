"""results.html: a study on one page, with pictures as in arXiv 2010.11929, figures 4 and 5."""

from collections.abc import Sequence

import numpy as np
from etils import epath

from vit_jax.draw import html_page
from vit_jax.draw.figures import scaling
from vit_jax.draw.html_page import Picture
from vit_jax.draw.style import look
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
) -> scaling.Series:
    first = made.points[mine[0]]
    y = np.array([points.as_loss(made.metric, each) for each in loss])
    return scaling.Series(first.model, first.cost.family, np.array(x, float), y, line)


def _picture(
    made: StudyResult,
    series: Sequence[scaling.Series],
    over: str,
    x_label: str,
    against: str,
    frontier: tuple[np.ndarray, np.ndarray] | None = None,
) -> bytes:
    laws = [
        _law(made, each) for each in made.laws if each.curve.over == over and each.law is not None
    ]
    figure = scaling.scaling(
        series,
        laws,
        x_label=x_label,
        y_label=made.metric,
        title=f"{made.metric} against {against}",
        percent=made.metric.endswith("accuracy"),
        frontier=frontier if frontier and len(frontier[0]) else None,
    )
    return look.png(figure)


def _law(made: StudyResult, each: FittedCurve) -> scaling.Law:
    assert each.law is not None
    assert each.interval is not None
    y, low, high = (np.array(_as_metric(made, values)) for values in each.interval)
    return scaling.Law(each.curve.name, each.x, y, low, high, each.extrapolated)


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
