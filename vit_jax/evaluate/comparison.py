"""The numbers of several models side by side, and which classes each takes for others."""

from __future__ import annotations

import collections
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

import numpy as np

from vit_jax.core import synsets
from vit_jax.core.class_names import normal
from vit_jax.core.metric_names import is_less_better, is_score, readable
from vit_jax.core.screen import aligned
from vit_jax.core.tables import csv_text, for_json
from vit_jax.data.source import Source
from vit_jax.evals.classification import NO_LABEL, Scores
from vit_jax.probes.by_class import ClassCounts

Results = Mapping[str, Mapping[str, float]]  # numbers by name, by model
WRONG_COLUMNS = ("image", "label", "prediction", "confidence", "loss")
NONE = "–"  # where there is no number


def numbers(results: Results) -> list[str]:
    """The names of all numbers, by evaluation, in order of first appearance."""
    names = dict.fromkeys(name for row in results.values() for name in row)
    evaluations = list(dict.fromkeys(name.partition("/")[0] for name in names))
    return sorted(names, key=lambda name: evaluations.index(name.partition("/")[0]))


def table(results: Results) -> list[str]:
    """Lines for people: a row for each number that any model has, a column for each model."""
    names = [name for name in numbers(results) if not name.endswith(("examples", "_images"))]
    values = {name: [row.get(name) for row in results.values()] for name in names}
    rows = [[name, *(shown(name, each, of) for each in of)] for name, of in values.items()]
    return aligned(["", *results], rows, left={0})


def csv(results: Results) -> str:
    """The text of --csv: a row for each model, with every digit; an empty cell without one."""
    names = numbers(results)
    rows = [[model, *(row.get(name, "") for name in names)] for model, row in results.items()]
    return csv_text([["checkpoint", *names], *rows])


def class_csv(scored: AllScored) -> str:
    """The text of --class_csv: a row for each class of each evaluation of each model.

    An empty cell is a share of no images.
    """
    head = ["checkpoint", "evaluation", *ClassRecord.__annotations__]
    rows = [
        [model, name, *("" if x is None else x for x in record.values())]
        for name, by_model in scored.items()
        for model, each in by_model.items()
        for record in each.by_class()
    ]
    return csv_text([head, *rows])


def wrong_csv(scored: AllScored) -> str:
    """The text of --wrong_csv: a row for each wrong image, the surest first."""
    rows: list[list[Any]] = [["checkpoint", "evaluation", *WRONG_COLUMNS]]
    for name, by_model in scored.items():
        for model, (source, scores, _), names in ((m, x, x.names()) for m, x in by_model.items()):
            wrong = np.flatnonzero(~scores.correct)
            for i in wrong[np.argsort(-scores.confidence[wrong], kind="stable")]:
                labels = "|".join(names[label] for label in scores.labels[i] if label != NO_LABEL)
                numbers = scores.confidence[i].item(), scores.loss[i].item()
                where = source.describe(scores.places[i])
                rows.append([model, name, where, labels, names[scores.prediction[i]], *numbers])
    return csv_text(rows)


def document(results: Results, scored: AllScored) -> dict[str, dict[str, Any]]:
    """Numbers of each model, and with them the classes of evaluations, as "test/by_class"."""
    made: dict[str, dict[str, Any]] = {model: dict(row) for model, row in results.items()}
    for name, by_model in scored.items():
        for model, each in by_model.items():
            made[model][f"{name}/by_class"] = each.by_class()
    return made


def as_json(results: Any) -> str:
    """One line; null for a number that is not finite, which JSON lacks."""
    return json.dumps(for_json(results), allow_nan=False)


def best(name: str, values: Sequence[float | None]) -> float | None:
    """The best of several models' numbers; None where there is nothing to choose from."""
    there = [value for value in values if value is not None and math.isfinite(value)]
    better = max if is_score(name) else min if is_less_better(name) else None
    return better(there) if better and len(set(there)) > 1 else None


def shown(name: str, value: float | None, among: Iterable[float | None] = ()) -> str:
    """A number for people, 98.06%, 0.09995; `among` those of other models, with their decimals."""
    return NONE if value is None or math.isnan(value) else readable(name, value, among)


class Seen(NamedTuple):
    """The images with the highest loss, the highest first, as the model gets them."""

    places: np.ndarray  # in the arrays of the scores
    pixels: np.ndarray  # uint8 [M, H, W, 3]
    heat: np.ndarray  # where it looks, [M, rows, columns]
    what: str  # what the heat is, in words


class ClassRecord(TypedDict):
    """A class in JSON and CSV; None for a share of no images."""

    name: str
    images: int
    predicted: int
    precision: float | None
    recall: float | None
    f1: float | None


class Scored(NamedTuple):
    """The images of an evaluation, and what a model makes of them."""

    source: Source
    scores: Scores
    hardest: Seen | None = None

    def names(self) -> list[str]:
        """The names of all classes; ImageNet's for a WordNet id alone."""
        ours = self.source.class_names or list(map(str, range(self.source.num_classes)))
        known = synsets.names() | synsets.names_1k()
        return [known.get(name, name) for name in ours]

    def short_names(self) -> list[str]:
        """The same, of ImageNet's the first word without the WordNet id, as far as these differ."""
        return _shortened(self.names())

    def by_class(self) -> list[ClassRecord]:
        """Precision, recall and F1 of each class."""
        counts = self.scores.counts
        columns = (counts.images, counts.predicted, counts.precision, counts.recall, counts.f1)
        rows = zip(self.names(), *(column.tolist() for column in columns), strict=True)
        return [
            ClassRecord(name=name, images=n, predicted=m, precision=p, recall=r, f1=f)
            for name, n, m, *shares in rows
            for p, r, f in [[None if math.isnan(x) else x for x in shares]]
        ]


def _shortened(names: Sequence[str]) -> list[str]:
    ids = synsets.wordnet_ids(names)
    short = [synsets.without_id(name).partition(",")[0] if ids else name for name in names]
    times = collections.Counter(short)
    return [one if times[one] == 1 else name for one, name in zip(short, names, strict=True)]


def classes_of_all(by_model: Sequence[Scored]) -> tuple[list[str], list[ClassCounts]]:
    """Short names of the classes of all models, and each model's counts in their order.

    Classes are the same by name: models may have them in another order, or lack some, of which
    they have no images. First come those of the first model.
    """
    keys = [list(_numbered(map(normal, each.names()))) for each in by_model]
    names: dict[tuple[str, int], str] = {}
    for one, each in zip(keys, by_model, strict=True):
        names = dict(zip(one, each.names(), strict=True)) | names
    place = {key: i for i, key in enumerate(dict.fromkeys(itertools.chain(*keys)))}
    made = []
    for one, each in zip(keys, by_model, strict=True):
        counts = np.zeros((len(ClassCounts._fields), len(place)), np.int64)
        counts[:, [place[key] for key in one]] = each.scores.counts
        made.append(ClassCounts(*counts))
    return _shortened([names[key] for key in place]), made


def _numbered(names: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Names of classes, which may be there twice, and which of the same name each is."""
    times: collections.Counter[str] = collections.Counter()
    for name in names:
        times[name] += 1
        yield name, times[name]


AllScored = Mapping[str, Mapping[str, Scored]]  # by evaluation, by model


class Pair(NamedTuple):
    """Images of the class `label` that were taken for `prediction`."""

    label: int
    prediction: int
    places: np.ndarray  # in the arrays of the scores, the surest first


class Confusion(NamedTuple):
    """Numbers of images of each class that were taken for each class."""

    classes: np.ndarray  # those that have images, [K]
    # [K, K + 1] of their images; the last column is of all classes without images.
    counts: np.ndarray


def confusion(scores: Scores) -> Confusion:
    """The confusion matrix.

    An image of several classes counts for the one that it was taken for, else for the first.
    """
    classes = np.flatnonzero(scores.counts.images)
    place = np.full(len(scores.counts.images), len(classes))
    place[classes] = np.arange(len(classes))
    labels = np.where(scores.correct, scores.prediction, scores.labels[:, 0])
    counts = np.zeros((len(classes), len(classes) + 1), int)
    np.add.at(counts, (place[labels], place[scores.prediction]), 1)
    return Confusion(classes, counts)


def most_confused(scores: Scores, number: int) -> Sequence[Pair]:
    """The pairs with most wrong images, at most `number`; among equals by their classes.

    An image of several classes counts for the first of them.
    """
    wrong = np.flatnonzero(~scores.correct)
    both = np.stack([scores.labels[wrong, 0], scores.prediction[wrong]], axis=1)
    pairs, of, counts = np.unique(both, axis=0, return_inverse=True, return_counts=True)
    found = []
    for at in np.argsort(-counts, kind="stable")[:number]:
        places = wrong[of.ravel() == at]
        surest = places[np.argsort(-scores.confidence[places], kind="stable")]
        label, prediction = map(int, pairs[at])
        found.append(Pair(label, prediction, surest))
    return found
