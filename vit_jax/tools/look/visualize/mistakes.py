"""A model's worst mistakes, and what it saw there."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.special
from matplotlib.figure import Figure

from vit_jax.core.screen import format_percent
from vit_jax.draw import style
from vit_jax.draw.attention_pictures import blend
from vit_jax.draw.html_page import Findings, Picture, Section
from vit_jax.draw.tiles import PhotoSheet
from vit_jax.models import observe
from vit_jax.tools.look.visualize.photos import Outputs, Photos

TITLE = "What it gets wrong"
MOST = 8  # images


class Mistakes(NamedTuple):
    """Images that a model gets wrong, the surest first."""

    places: list[int]  # indices among all images
    true: list[int]
    predicted: list[int]
    probabilities: np.ndarray  # [K, 2], of the true class and of the predicted one
    labelled: int  # number of images whose class is known
    wrong: int  # number of these that are wrong


def find_mistakes(
    photos: Photos, logits: np.ndarray, most: int, *, probabilities: str = "softmax"
) -> Mistakes:
    """Finds the `most` wrong images with the least softmax or sigmoid of their class."""
    known = [(place, label) for place, label in enumerate(photos.labels) if label is not None]
    places = np.array([place for place, _ in known], int)
    true = np.array([label for _, label in known], int)
    exact = logits[places].astype(np.float64)
    sigmoid = probabilities == "sigmoid"
    p = scipy.special.expit(exact) if sigmoid else scipy.special.softmax(exact, -1)
    predicted = exact.argmax(axis=-1)
    own_probability = p[np.arange(len(true)), true]
    wrong = np.flatnonzero(predicted != true)
    worst = wrong[np.argsort(own_probability[wrong], kind="stable")][:most]
    shown = np.stack([own_probability[worst], p[worst, predicted[worst]]], axis=-1)
    wheres, of, seen = (each[worst].tolist() for each in (places, true, predicted))
    return Mistakes(wheres, of, seen, shown, len(known), len(wrong))


def findings(model: Any, photos: Photos, outputs: Outputs, titles: Any) -> Findings:
    """The picture of mistakes; `titles` names a class by its number."""
    if outputs.logits is None:
        text = "These weights have no head, so they name no classes."
        return Findings(Section(TITLE, [], text), {})
    kind = getattr(model.spec, "probabilities", "softmax")
    mistakes = find_mistakes(photos, outputs.logits, MOST, probabilities=kind)
    if not mistakes.labelled:
        text = "No class of an image is known: put them into folders named as the model's classes."
        return Findings(Section(TITLE, [], text), {})
    more = len(photos) - mistakes.labelled
    unknown = f"; of {more:,} more no class of the model is known" if more else ""
    text = f"{mistakes.wrong:,} of {mistakes.labelled:,} images are wrong{unknown}."
    numbers = {"accuracy": 1 - mistakes.wrong / mistakes.labelled}
    if not mistakes.wrong:
        return Findings(Section(TITLE, [], text), numbers)
    inputs = photos.subset(mistakes.places).stacked
    if observe.has_attention(model):
        heat, what = observe.rollout(model, inputs).patches, "rollout"
    else:
        heat, what = observe.relevance(model, inputs, mistakes.predicted).map.patches, "relevance"
    seen = observe.seen_pixels(model, photos.pixels(inputs))
    true, predicted = ([titles(c) for c in of] for of in (mistakes.true, mistakes.predicted))
    shown = (seen, heat, true, predicted, mistakes.probabilities)
    note = f"The images whose own class got the least probability, and the {what} beside each."
    draw = functools.partial(draw_mistakes, *shown, what=what)
    picture = Picture("mistakes", "Most wrong", note, draw)
    return Findings(Section(TITLE, [picture], text), numbers)


@style.styled
def draw_mistakes(
    photos: np.ndarray,
    heat: np.ndarray,
    true: Sequence[str],
    predicted: Sequence[str],
    probabilities: np.ndarray,
    *,
    what: str,
) -> Figure:
    """Draws heat [B, R, C] beside photos, with the names and probabilities [B, 2] of classes.

    Heat, called `what`, is scaled by the largest of each image; the classes are true and predicted.
    """
    captions = [
        f"is {one} ({format_percent(p[0], 1)})\nseen as {other} ({format_percent(p[1], 1)})"
        for one, other, p in zip(true, predicted, probabilities, strict=True)
    ]
    note = f"with the probability of each class; {what} beside each image"
    sheet = PhotoSheet(photos, captions, beside=1, lines=4, title="Most wrong", note=note, bar=True)
    for k, photo in enumerate(photos):
        sheet.show(*sheet.place(k, 1), blend(photo, heat[k]))
    sheet.colour_bar(style.HEAT, 0, 1, f"{what}, share of the largest in the image")
    return sheet.figure
