"""Right and wrong predictions by class, and the pairs of classes that are taken for each other."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from vit_jax.training.evals.classification import NO_LABEL, Scores


class OfClass(NamedTuple):
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


def of_classes(scores: Scores, num_classes: int) -> OfClass:
    """How many images of each class there are, and how many of them are right."""
    rows, columns = np.nonzero(scores.labels != NO_LABEL)
    labels = scores.labels[rows, columns]
    count = lambda weights: np.bincount(labels, weights, minlength=num_classes).astype(int)
    return OfClass(count(None), count(scores.correct[rows]))


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
