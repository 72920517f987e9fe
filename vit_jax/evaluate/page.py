"""The page of an evaluation: models side by side, and what each gets wrong.

One file of HTML that needs no network and no other file: the comparison, and for each evaluation
that classifies the precision and recall of each class, the confusion of classes with pictures, the
images with the highest loss, and the reliability of probabilities.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np
from markupsafe import Markup
from PIL import Image

from vit_jax.core.metric_names import readable, words
from vit_jax.core.screen import format_percent
from vit_jax.draw import charts, html_page
from vit_jax.draw.attention_pictures import blend
from vit_jax.draw.html_page import bold
from vit_jax.evals.classification import NO_LABEL, Scores
from vit_jax.evaluate import comparison
from vit_jax.evaluate.comparison import AllScored, Pair, Results, Scored
from vit_jax.probes.calibration import BINS, reliability
from vit_jax.store.runs import short_names

MATRIX = 30  # classes of a confusion matrix at most
PAIRS, PICTURES = 40, 4  # pairs with pictures; pictures of each
SHARES = ("precision", "recall", "F1")
SIDE, LARGE = 112, 224  # of pictures, in pixels
OPEN_CLASSES = 10  # that are shown at once, the worst first

WIDTH, BOX = 320, (64, 312, 10, 206)  # of a chart, without the counts below
COUNTS, DIGIT, LABEL = 26, 6.5, 22  # these are so far below; heights of a digit, and of a label


def page(results: Results, scored: AllScored, made_at: datetime.datetime) -> str:
    """The text of the file."""
    names = dict(zip(results, short_names([PurePath(model) for model in results]), strict=True))
    one = next(iter(results)) if len(results) == 1 else None
    return html_page.render(
        "evaluate/page.html",
        title=names[one] if one else f"{len(results)} models",
        subtitle=f"{f'{one} · ' if one else ''}{made_at:%Y-%m-%d %H:%M %Z}",
        models=[Markup('<span title="{}">{}</span>').format(*each) for each in names.items()],
        # What images were scored for comes first.
        comparison=sorted(_comparison(results).items(), key=lambda each: each[0] not in scored),
        evaluations=[
            {
                "name": name,
                "classes": _classes(each, names),
                "models": [_model(names[model], scored) for model, scored in each.items()],
            }
            for name, each in scored.items()
        ],
        open_classes=OPEN_CLASSES,
    )


def _comparison(results: Results) -> dict[str, list[list[str]]]:
    """For each evaluation a row for each number, a column for each model; the best one is bold.

    How many images have no label, or were skipped, is told where there are some.
    """
    tables: dict[str, list[list[str]]] = {}
    for name in comparison.numbers(results):
        evaluation, _, number = name.partition("/")
        values = [row.get(name) for row in results.values()]
        if number.endswith("_images") and not any(values):
            continue
        best = comparison.best(name, values)
        shown = [(comparison.shown(name, v, values), v is not None and v == best) for v in values]
        head = Markup('<span title="{}">{}</span>').format(name, words(number))
        row = [head, *(bold(text) if is_best else text for text, is_best in shown)]
        tables.setdefault(evaluation, []).append(row)
    return tables


def _classes(by_model: Mapping[str, Scored], names_of: Mapping[str, str]) -> dict[str, Any]:
    """Rows of classes that have images or are taken for some: the worst of the first model first.

    Three numbers for each model; the first row is their means.
    """
    names, counts = comparison.classes_of_all(list(by_model.values()))
    images = np.max([c.images for c in counts], axis=0)  # a model may lack the class
    shares = [x for c in counts for x in (c.precision, c.recall, c.f1)]
    seen = np.flatnonzero(sum(c.images + c.predicted for c in counts))
    worst_first = seen[np.lexsort((seen, -images[seen], np.nan_to_num(counts[0].f1[seen], nan=2)))]
    means = [bold(format_percent(x)) for c in counts for x in c.means().values()]
    texts = [
        [comparison.NONE if np.isnan(x) else format_percent(x) for x in share] for share in shares
    ]
    rows = [[names[i], f"{images[i]:,}", *(text[i] for text in texts)] for i in worst_first]
    of = [""]
    if len(names_of) > 1:
        line = Markup('<br><small title="{}">{}</small>')
        of = [line.format(model, names_of[model]) for model in by_model]
    return {
        "head": ["class", "images", *(share + m for m in of for share in SHARES)],
        "means": [bold("mean of classes"), "", *means],
        "rows": rows,
        "without": int((images == 0).sum()),
        "exclusive": all(each.scores.exclusive for each in by_model.values()),
    }


def _model(name: str, scored: Scored) -> dict[str, Any]:
    """The part of the page about a model: its mistakes."""
    scores, names = scored.scores, scored.short_names()
    pairs = comparison.most_confused(scores, PAIRS) if scores.exclusive else []
    matrix = scores.exclusive and (scores.counts.images > 0).sum() <= MATRIX
    return {
        "name": name,
        "exclusive": scores.exclusive,
        "wrong": int((~scores.correct).sum()),
        "several_labels": scores.labels.shape[1] > 1,
        "matrix": _matrix(scores, names) if matrix else None,
        "confused": [_confused(pair, scored, names) for pair in pairs],
        "hardest": _hardest(scored, names),
        "chart": _reliability(scores),
    }


def _matrix(scores: Scores, names: Sequence[str]) -> dict[str, Any]:
    """The head and the rows of a confusion matrix: counts, and their shares of the row."""
    classes, counts = comparison.confusion(scores)
    head = [names[i] for i in classes] + ["another"] * bool(counts[:, -1].any())
    rows = [
        (name, [(int(n), n / max(1, row.sum()), i == j) for j, n in enumerate(row[: len(head)])])
        for i, (name, row) in enumerate(zip(head, counts, strict=False))
    ]
    return {"head": head, "rows": rows}


def _confused(pair: Pair, scored: Scored, names: Sequence[str]) -> dict[str, Any]:
    """Two classes, and some of the images that were taken for the wrong one, the surest first."""
    places = pair.places[:PICTURES]
    confidence = map(format_percent, scored.scores.confidence[places].tolist())
    return {
        "label": names[pair.label],
        "prediction": names[pair.prediction],
        "number": len(pair.places),
        "share": format_percent(len(pair.places) / scored.scores.counts.images[pair.label]),
        "images": list(zip(*_thumbnails(scored, places, SIDE), confidence, strict=True)),
    }


def _thumbnails(scored: Scored, places: np.ndarray, side: int) -> tuple[list, list]:
    """URLs of pictures, None of one that is damaged, and where their images are."""
    source, in_source = scored.source, scored.scores.places[places]
    urls = [
        html_page.thumbnail_url(example.image, side, upright=example.orientation != 1)
        for example in source.read(in_source)
    ]
    where = [source.describe(place).removeprefix(f"{source.location}/") for place in in_source]
    return urls, where


def _hardest(scored: Scored, names: Sequence[str]) -> list[dict[str, Any]]:
    """The images with the highest loss, and beside each what the model sees, and where it looks."""
    if scored.hardest is None:
        return []
    (places, pixels, heat, what), scores = scored.hardest, scored.scores
    seen = [Image.fromarray(blend(*each)) for each in zip(pixels, heat, strict=True)]
    pictures = [html_page.picture_url(each, LARGE) for each in seen]
    shown = zip(places, *_thumbnails(scored, places, LARGE), pictures, strict=True)
    return [
        {
            "image": image,
            "seen": picture,
            "what": what,
            "where": where,
            "labels": [names[i] for i in scores.labels[place] if i != NO_LABEL],
            "prediction": names[scores.prediction[place]],
            "confidence": format_percent(float(scores.confidence[place])),
            "correct": bool(scores.correct[place]),
            "loss": comparison.shown("loss", float(scores.loss[place])),
        }
        for place, image, where, picture in shown
    ]


@charts.styled
def _reliability(scores: Scores) -> dict[str, Any]:
    """Bars of accuracy by confidence; on the diagonal the two agree. Each bin's count is below."""
    bins = reliability(scores.confidence.astype(np.float64), scores.correct)
    numbers = [f"{number:,.0f}" for number in bins.examples]
    counts = COUNTS + DIGIT * len(f"{scores.correct.size:,}")  # as high for every model
    axes = charts.blank((WIDTH, round(BOX[3] + counts + LABEL) + 4), BOX)
    for axis in (axes.xaxis, axes.yaxis):
        charts.scale(axis, 0, 1, percent=True)
    hints, quiet = {}, charts.COLOURS["quiet"]
    axes.set_ylabel("images that are right", color=quiet, labelpad=8)
    axes.set_xlabel("how sure, and how many images", labelpad=counts - 13)
    below = -COUNTS / (BOX[3] - BOX[2])
    for i, (confidence, correct, number) in enumerate(zip(*bins, strict=True)):
        left, width, middle = (i + 0.03) / BINS, 0.94 / BINS, (i + 0.5) / BINS
        axes.text(middle, below, numbers[i], rotation=90, ha="center", va="top", color=quiet)
        if number:
            accuracy, colour = correct / number, charts.RUNS[0]
            shares = format_percent(confidence / number), format_percent(accuracy)
            hint, kind = "{} images, sure by {}, right {}".format(numbers[i], *shares), "bar"
        else:
            accuracy, colour, hint, kind = 1.0, charts.COLOURS["rule"], "no images", "empty"
        axes.bar(left, accuracy, width, align="edge", color=colour)[0].set_gid(f"bin{i}")
        hints[f"bin{i}"] = (Markup('class="{}"').format(kind), hint)
    axes.plot([0, 1], [0, 1], color=charts.COLOURS["ink"], alpha=0.6, lw=1, dashes=(4, 3))
    # Of sigmoids or several labels, confidence is no estimate of how often the image is right.
    calibrated = scores.exclusive and scores.labels.shape[1] == 1
    return {
        "ece": readable("ece", bins.ece) if calibrated else None,
        "svg": charts.svg(axes, "reliability", hints),
    }
