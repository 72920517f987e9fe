"""The numbers of several models side by side, and which classes each takes for others."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from vit_jax.core import synsets
from vit_jax.core.files import write_text
from vit_jax.core.screen import aligned
from vit_jax.core.tables import csv_text
from vit_jax.data.source import Source
from vit_jax.evals.classification import NO_LABEL, Scores
from vit_jax.evals.kind import is_less_better, is_percentage

Results = Mapping[str, Mapping[str, float]]  # numbers by name, by model


def numbers(results: Results) -> list[str]:
    """The names of all numbers, in order of first appearance."""
    return list(dict.fromkeys(name for row in results.values() for name in row))


def table(results: Results) -> list[str]:
    """Lines for people: a row for each number that any model has, a column for each model."""
    names = [name for name in numbers(results) if not name.endswith(("examples", "_images"))]
    rows = [[name, *(shown(name, row.get(name)) for row in results.values())] for name in names]
    return aligned(["", *results], rows, left={0})


def write_csv(path: epath.Path, results: Results) -> None:
    """A row for each model, with every digit; an empty cell for a number that it has not."""
    names = numbers(results)
    rows = [[model, *(row.get(name, "") for name in names)] for model, row in results.items()]
    write_text(path, csv_text([["checkpoint", *names], *rows]))


def as_json(results: Any) -> str:
    """One line; null for a number that is not finite, which JSON lacks."""
    return json.dumps(_finite(results), allow_nan=False)


def _finite(x: Any) -> Any:
    if isinstance(x, Mapping):
        return {name: _finite(value) for name, value in x.items()}
    return x if math.isfinite(x) else None


def best(name: str, values: Sequence[float | None]) -> float | None:
    """The best of several models' numbers; None where there is nothing to choose from."""
    there = [value for value in values if value is not None and math.isfinite(value)]
    better = max if is_percentage(name) else min if is_less_better(name) else None
    return better(there) if better and len(set(there)) > 1 else None


def shown(name: str, value: float | None) -> str:
    """A number for people: 98.06%, 0.09995."""
    if value is None:
        return "-"
    return f"{value:.2%}" if is_percentage(name) else f"{value:.4g}"


class Scored(NamedTuple):
    """The images of an evaluation, and what a model makes of them."""

    source: Source
    scores: Scores

    def name(self, label: int) -> str:
        """The name of a class; ImageNet's where it is a WordNet id alone."""
        names = self.source.class_names
        name = names[label] if names else str(label)
        return synsets.names_1k().get(name) or synsets.names().get(name) or name


class ClassCounts(NamedTuple):
    """By class, [C] each. An image of several classes counts for each of them."""

    images: np.ndarray
    correct: np.ndarray


class Pair(NamedTuple):
    """Images of the class `label` that were taken for `prediction`.

    Attributes:
      places: in the arrays of the scores, the surest first.
    """

    label: int
    prediction: int
    places: np.ndarray


def count_by_class(scores: Scores, num_classes: int) -> ClassCounts:
    """How many images of each class there are, and how many of them are right."""
    rows, columns = np.nonzero(scores.labels != NO_LABEL)
    labels = scores.labels[rows, columns]
    count = lambda weights: np.bincount(labels, weights, minlength=num_classes).astype(int)
    return ClassCounts(count(None), count(scores.correct[rows]))


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
