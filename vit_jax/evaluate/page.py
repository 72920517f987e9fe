"""The page of an evaluation: models side by side, and what each gets wrong.

One file of HTML that needs no network and no other file: the comparison, and for each evaluation
that classifies the reliability of probabilities, accuracy by class, and the pairs of classes that
are most confused, with their pictures.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vit_jax.core import synsets
from vit_jax.data.source import Source
from vit_jax.draw import html_page, scales, svg, thumbnails
from vit_jax.draw.scales import Axes, Scale
from vit_jax.evaluate import confusions
from vit_jax.evaluate.confusions import Pair
from vit_jax.probes.calibration import BINS, reliability
from vit_jax.run import comparison
from vit_jax.run.comparison import Results
from vit_jax.training.evals.classification import Scores

PAIRS, PICTURES = 12, 4  # the most of a model; the most of a pair
SIDE = 112  # of a picture, in pixels
OPEN_CLASSES = 20  # that are shown at once, the worst first

# In about CSS pixels.
SIZE = 300, 220
AXES = Axes(Scale(0, 1), Scale(0, 1), 46, 292, 10, 196)


class Scored(NamedTuple):
    """The images of an evaluation, and what a model makes of them."""

    source: Source
    scores: Scores

    def name(self, label: int) -> str:
        """The name of a class; ImageNet's where it is a WordNet id alone."""
        names = self.source.class_names
        name = names[label] if names else str(label)
        return synsets.names_1k().get(name) or synsets.names().get(name) or name


# By evaluation, by model.
AllScored = Mapping[str, Mapping[str, Scored]]


def page(results: Results, scored: AllScored, made_at: datetime.datetime) -> str:
    """The text of the file."""
    models = list(results)
    title = models[0] if len(models) == 1 else f"{len(models)} models"
    body = [f"<main>{_comparison(results)}"]
    for name, by_model in scored.items():
        body += [
            f"<h2>{escape(name)}: how sure, how often right</h2>",
            '<div class="panels">',
            *(_reliability(model, each.scores) for model, each in by_model.items()),
            "</div>",
            f"<h2>{escape(name)}: accuracy by class</h2>",
            _classes(by_model),
        ]
        for model, each in by_model.items():
            of = f" by {escape(model)}" if len(by_model) > 1 else ""
            body.append(_pairs(f"{escape(name)}: most confused{of}", each))
    body.append("</main>")
    return html_page.document(
        escape(title),
        body,
        program="evaluate",
        subtitle=f"{made_at:%Y-%m-%d %H:%M %Z}",
        css=Path(__file__).with_name("page.css").read_text(encoding="utf-8"),
        policy="img-src data:",
    )


def _comparison(results: Results) -> str:
    """A row for each number, a column for each model; the best one is bold."""
    rows = []
    for name in comparison.numbers(results):
        values = [row.get(name) for row in results.values()]
        best = comparison.best(name, values)
        cells = (_cell(comparison.shown(name, v), bold=v is not None and v == best) for v in values)
        rows.append(f'<tr><th scope="row"><code>{escape(name)}</code></th>{"".join(cells)}</tr>')
    return _table(["", *results], rows)


def _reliability(model: str, scores: Scores) -> str:
    """Bars of accuracy by confidence, and the diagonal on which the two agree."""
    bins = reliability(scores.confidence.astype(np.float64), scores.correct)
    bars = []
    for i, (confidence, correct, number) in enumerate(zip(*bins, strict=True)):
        if not number:
            continue
        accuracy = correct / number
        x, width = AXES.x(i / BINS) + 0.5, (AXES.right - AXES.left) / BINS - 1
        hint = f"{number:,.0f} images, sure by {confidence / number:.1%}, right {accuracy:.1%}"
        bars.append(
            f'<rect class="bar" x="{x:.1f}" width="{width:.1f}" y="{AXES.y(accuracy):.1f}" '
            f'height="{AXES.bottom - AXES.y(accuracy):.1f}"><title>{hint}</title></rect>'
        )
        share = float(number / bins.examples.sum())
        bars.append(
            f'<rect class="share" x="{x:.1f}" width="{width:.1f}" y="{AXES.bottom + 20}" '
            f'height="{12 * share:.1f}"/>'
        )
    ticks = [0, 0.2, 0.4, 0.6, 0.8, 1]
    labels = zip(ticks, scales.labels(ticks, percent=True), strict=True)
    behind = [
        *svg.grid(AXES, ticks, percent=True),
        *(svg.label_below(AXES, AXES.x(tick), label) for tick, label in labels),
    ]
    diagonal = (
        f'<line class="diagonal" x1="{AXES.left}" y1="{AXES.bottom}" '
        f'x2="{AXES.right}" y2="{AXES.top}"/>'
    )
    picture = svg.picture(f"{model}: reliability", SIZE, AXES, behind, [*bars, diagonal])
    return (
        f'<figure><figcaption><b title="{escape(model)}">{escape(model)}</b>'
        f"<code>ECE {bins.ece:.2%}</code></figcaption>\n{picture}\n</figure>"
    )


def _classes(by_model: Mapping[str, Scored]) -> str:
    """Accuracy by class, the worst of the first model first; classes without images left out."""
    first = next(iter(by_model.values()))
    number = first.source.num_classes
    of = [confusions.of_classes(each.scores, number) for each in by_model.values()]
    there = np.flatnonzero(of[0].images)
    share = of[0].correct[there] / of[0].images[there]
    rows = []
    for label in there[np.lexsort((there, -of[0].images[there], share))]:
        cells = [
            _cell(f"{each.correct[label] / each.images[label]:.1%}" if each.images[label] else "-")
            for each in of
        ]
        rows.append(
            f'<tr><th scope="row">{escape(first.name(int(label)))}</th>'
            f"{_cell(f'{of[0].images[label]:,}')}{''.join(cells)}</tr>"
        )
    head = ["class", "images", *by_model]
    more = (
        f"<details><summary>{len(rows) - OPEN_CLASSES:,} more classes</summary>"
        f"{_table(head, rows[OPEN_CLASSES:])}</details>"
    )
    return _table(head, rows[:OPEN_CLASSES]) + (more if len(rows) > OPEN_CLASSES else "")


def _pairs(title: str, scored: Scored) -> str:
    """The pairs of classes with most wrong images, and some of these, the surest first."""
    pairs = confusions.most_confused(scored.scores, PAIRS)
    wrong = int((~scored.scores.correct).sum())
    if not pairs:
        return f'<h2>{title}</h2><p class="aside">Every image is right.</p>'
    shown = sum(len(pair.places) for pair in pairs)
    note = f'<span class="note">{shown:,} of {wrong:,} wrong images</span>'
    cells = [_pair(pair, scored) for pair in pairs]
    return f'<h2>{title} {note}</h2>\n<div class="confused">\n{html_page.lines(cells)}\n</div>'


def _pair(pair: Pair, scored: Scored) -> str:
    scores, source = scored.scores, scored.source
    places = pair.places[:PICTURES]
    pictures = []
    for place, example in zip(places, source.read(scores.places[places]), strict=True):
        url = thumbnails.data_url(example.image, SIDE, upright=example.orientation != 1)
        where = escape(source.describe(int(scores.places[place])), quote=True)
        image = f'<img src="{url}" alt="" title="{where}">' if url else '<i title="damaged"></i>'
        pictures.append(f"<span>{image}<code>{scores.confidence[place]:.0%}</code></span>")
    images = "image" if len(pair.places) == 1 else "images"
    return (
        f"<section><p><b>{escape(scored.name(pair.label))}</b> taken for "
        f"<b>{escape(scored.name(pair.prediction))}</b>: {len(pair.places):,} {images}</p>"
        f"<div>{''.join(pictures)}</div></section>"
    )


def _table(head: Sequence[str], rows: Sequence[str]) -> str:
    titles = "".join(f"<th>{escape(text)}</th>" for text in head)
    body = f"<thead><tr>{titles}</tr></thead>\n<tbody>\n{html_page.lines(rows)}\n</tbody>"
    return f'<div class="wide"><table>{body}</table></div>'


def _cell(text: str, *, bold: bool = False) -> str:
    return f"<td><b>{escape(text)}</b></td>" if bold else f"<td>{escape(text)}</td>"
