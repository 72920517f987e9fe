"""The page of an evaluation: models side by side, and what each gets wrong.

One file of HTML that needs no network and no other file: the comparison, and for each evaluation
that classifies the reliability of probabilities, accuracy by class, and the pairs of classes that
are most confused, with their pictures.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.patches import Rectangle

from vit_jax.draw import charts, html_page
from vit_jax.draw.html_page import bold, code
from vit_jax.evals.classification import Scores
from vit_jax.evaluate import comparison
from vit_jax.evaluate.comparison import Pair, Results, Scored
from vit_jax.probes.calibration import BINS, reliability

PAIRS, PICTURES = 12, 4  # the most of a model; the most of a pair
SIDE = 112  # of a picture, in pixels
OPEN_CLASSES = 20  # that are shown at once, the worst first

SIZE, BOX = (300, 220), (46, 292, 10, 196)  # of a chart


# By evaluation, by model.
AllScored = Mapping[str, Mapping[str, Scored]]


def page(results: Results, scored: AllScored, made_at: datetime.datetime) -> str:
    """The text of the file."""
    models = list(results)
    return html_page.render(
        "evaluate/page.html",
        title=models[0] if len(models) == 1 else f"{len(models)} models",
        subtitle=f"{made_at:%Y-%m-%d %H:%M %Z}",
        models=models,
        comparison=_comparison(results),
        evaluations=[
            {
                "name": name,
                "reliability": [_reliability(model, one.scores) for model, one in each.items()],
                "classes": _classes(each),
                "confused": [_confused(model, one) for model, one in each.items()],
            }
            for name, each in scored.items()
        ],
        open_classes=OPEN_CLASSES,
    )


def _comparison(results: Results) -> list[list[str]]:
    """A row for each number, a column for each model; the best one is bold."""
    rows = []
    for name in comparison.numbers(results):
        values = [row.get(name) for row in results.values()]
        best = comparison.best(name, values)
        shown = [(comparison.shown(name, v), v is not None and v == best) for v in values]
        rows.append([code(name), *(bold(text) if is_best else text for text, is_best in shown)])
    return rows


@charts.styled
def _reliability(model: str, scores: Scores) -> tuple[str, str, Markup]:
    """The model, its ECE, and bars of accuracy by confidence; on the diagonal the two agree.

    Below each bar is its share of the images.
    """
    bins = reliability(scores.confidence.astype(np.float64), scores.correct)
    axes = charts.blank(SIZE, BOX)
    for axis in (axes.xaxis, axes.yaxis):
        charts.scale(axis, 0, 1, percent=True)
    hints = {}
    pixel = 1 / (BOX[3] - BOX[2])
    for i, (confidence, correct, number) in enumerate(zip(*bins, strict=True)):
        if not number:
            continue
        left, width = (i + 0.03) / BINS, 0.94 / BINS
        accuracy, share = correct / number, number / bins.examples.sum()
        axes.bar(left, accuracy, width, align="edge", color=charts.RUNS[0])[0].set_gid(f"bin{i}")
        axes.add_patch(
            Rectangle(
                (left, -20 * pixel),
                width,
                -12 * pixel * share,
                color=charts.COLOURS["quiet"],
                alpha=0.6,
                linewidth=0,
                transform=axes.get_xaxis_transform(),
            )
        )
        hint = f"{number:,.0f} images, sure by {confidence / number:.1%}, right {accuracy:.1%}"
        hints[f"bin{i}"] = (Markup('class="bar"'), hint)
    axes.plot([0, 1], [0, 1], color=charts.COLOURS["ink"], alpha=0.6, lw=1, dashes=(4, 3))
    return model, f"{bins.ece:.2%}", charts.svg(axes, f"{model}: reliability", hints)


def _classes(by_model: Mapping[str, Scored]) -> list[list[str]]:
    """Accuracy by class, the worst of the first model first; classes without images left out."""
    first = next(iter(by_model.values()))
    number = first.source.num_classes
    counts = [comparison.count_by_class(each.scores, number) for each in by_model.values()]
    images, correct = counts[0]
    seen = np.flatnonzero(images)
    return [
        [
            first.name(int(label)),
            f"{images[label]:,}",
            *(
                f"{each.correct[label] / each.images[label]:.1%}" if each.images[label] else "-"
                for each in counts
            ),
        ]
        for label in seen[np.lexsort((seen, -images[seen], correct[seen] / images[seen]))]
    ]


def _confused(model: str, scored: Scored) -> tuple[str, int, list[dict[str, Any]]]:
    """The model, how many images are wrong, and the pairs of classes with most of them."""
    wrong = int((~scored.scores.correct).sum())
    pairs = comparison.most_confused(scored.scores, PAIRS)
    return model, wrong, [_pair(pair, scored) for pair in pairs]


def _pair(pair: Pair, scored: Scored) -> dict[str, Any]:
    """Two classes, and some of the images that were taken for the wrong one, the surest first."""
    scores, source = scored.scores, scored.source
    places = pair.places[:PICTURES]
    images = [
        (
            html_page.thumbnail_url(example.image, SIDE, upright=example.orientation != 1),
            source.describe(int(scores.places[place])),
            f"{scores.confidence[place]:.0%}",
        )
        for place, example in zip(places, source.read(scores.places[places]), strict=True)
    ]
    return {
        "label": scored.name(pair.label),
        "prediction": scored.name(pair.prediction),
        "number": len(pair.places),
        "images": images,
    }
