"""results.html: a study on one page, with pictures as in arXiv 2010.11929, figures 4 and 5."""

from collections.abc import Sequence
from html import escape

import numpy as np
from etils import epath

from vit_jax.core.files import write_text
from vit_jax.draw import html_page
from vit_jax.draw.figures import scaling
from vit_jax.draw.style import look
from vit_jax.probes import scaling_law
from vit_jax.store import workdir
from vit_jax.tools.lab.study import points, results
from vit_jax.tools.lab.study.laws import FittedCurve
from vit_jax.tools.lab.study.results import StudyResult

FILE = "results.html"
COMPUTE_PNG, EXAMPLES_PNG = "compute.png", "examples.png"
CSS = """
figure { max-width: 900px; margin: 16px 0; }
figure img { width: 100%; height: auto; background: white; }
"""


def write(folder: epath.Path, made: StudyResult) -> None:
    """Writes the page and its two pictures. UserError if it cannot."""
    pictures = {COMPUTE_PNG: compute_picture(made), EXAMPLES_PNG: examples_picture(made)}
    try:
        for name, data in pictures.items():
            (folder / name).write_bytes(data)
        write_text(folder / FILE, page(folder.name, made, pictures))
    except OSError as error:
        raise workdir.unwritable(folder, error) from error


def compute_picture(made: StudyResult) -> bytes:
    """PNG of all finished trainings over exaFLOPs, each model's frontier joined; figure 5."""
    losses = dict(made.scored)
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
    losses = dict(made.scored)
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
    for i, _ in made.scored:
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
    finished = sum(each.state == "finished" for each in made.points)
    total = sum(each.cost.exaflops * max(each.seeds, 1) for each in made.points)
    body = [
        f'<main><p class="aside">{finished} of {len(made.points)} points have finished; all '
        f"take {total:.3g} exaFLOPs.</p>",
        _failures(made),
        _figure(
            pictures[COMPUTE_PNG],
            "Each model's line joins the trainings that no cheaper one of it is as good as, the "
            "steps those of all models. ExaFLOPs are 3 x forward matrix FLOPs x examples seen.",
        ),
        _figure(
            pictures[EXAMPLES_PNG],
            "The best of each model's durations on each number of different examples.",
        ),
        *_best(made),
        *_laws(made),
        "<h2>All points</h2>",
        _points(made),
        "<h2>How to read it</h2>",
        _notes(),
        "</main>",
    ]
    return html_page.document(
        escape(name),
        body,
        program="study",
        subtitle=escape(f"{made.metric} · {made.config}"),
        css=CSS,
        policy="img-src data:",
    )


def _figure(png: bytes, caption: str) -> str:
    url = html_page.image_url(png, "png")
    return (
        f'<figure><img alt="{escape(caption)}" src="{url}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def _failures(made: StudyResult) -> str:
    items = "".join(f"<li>{escape(failure)}</li>" for failure in made.failures)
    return f"<h2>Did not finish</h2><ul>{items}</ul>" if items else ""


def _best(made: StudyResult) -> list[str]:
    rows = [[f"{s.low:.3g}", f"{s.high:.3g}", escape(s.model)] for s in made.stretches]
    asked = "".join(f"<li>{escape(results.optimum_line(made, each))}</li>" for each in made.optima)
    return [
        "<h2>The best model for a budget</h2>",
        _table(["from exaFLOPs", "to", "model"], rows),
        f"<ul>{asked}</ul>" if asked else "",
    ]


def _laws(made: StudyResult) -> list[str]:
    items = "".join(f"<li>{escape(results.law_line(made, law))}</li>" for law in made.laws)
    return ["<h2>Scaling laws</h2>", f"<ul>{items}</ul>"]


def _points(made: StudyResult) -> str:
    losses = dict(made.scored)
    best = set(made.best)
    rows = []
    for i, each in enumerate(made.points):
        score = made.shown(losses[i]) if i in losses else "-"
        rows.append(
            [
                escape(each.title),
                each.cost.family,
                *results.sizes(each),
                score,
                each.state,
                str(each.seeds),
                "yes" if i in best else "",
            ]
        )
    head = ["model", "family", *results.SIZES, escape(made.metric), "state", "seeds", "frontier"]
    return _table(head, rows)


def _notes() -> str:
    return (
        "<p>A law is fitted to the frontier of all models over compute, and to each model over its "
        "examples. Dashed, it is extrapolated: nothing was trained there. Its interval "
        f"({scaling_law.LEVEL:.0%}) is that of the fit, if the form of the law is right, which "
        "only trainings there could tell. The best of many points on a test flatters it a little; "
        "points of one seed scatter as trainings do.</p>"
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of cells that are escaped; the first of a row is its head."""
    tops = "".join(f"<th>{cell}</th>" for cell in head)
    lines = [
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in others)}</tr>'
        for first, *others in rows
    ]
    body = f"<thead><tr>{tops}</tr></thead>\n<tbody>\n{html_page.lines(lines)}\n</tbody>"
    return f'<div class="wide"><table>{body}</table></div>'
