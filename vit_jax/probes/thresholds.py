"""Decision thresholds of classes: the probability from which on an image is taken for a class."""

from typing import NamedTuple

import numpy as np


class Threshold(NamedTuple):
    """A threshold, and what it gives on the examples that it was chosen on."""

    threshold: float
    precision: float
    recall: float
    f1: float


def precision_recall(p: np.ndarray, hits: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Precision, recall and threshold, ascending, for each distinct probability among `p` [N].

    An example is taken if its probability is at least the threshold; `hits` [N] says whether that
    is right, of one at least. As scikit-learn's precision_recall_curve, without its last point.
    """
    order = np.argsort(-p, kind="stable")
    last = np.append(np.flatnonzero(np.diff(p[order])), len(p) - 1)[::-1]  # of equal probabilities
    right = np.cumsum(hits[order])[last]
    return right / (last + 1), right / hits.sum(), p[order][last]


def choose(p: np.ndarray, hits: np.ndarray, least_recall: float | None = None) -> Threshold:
    """The threshold of the best F1; or of the best precision with a recall of at least this.

    Of equals the highest. Choose it on examples that nothing was learnt from.
    """
    precision, recall, thresholds = precision_recall(p, hits)
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-300)
    score = np.where(recall >= least_recall, precision, -1) if least_recall is not None else f1
    best = np.flatnonzero(score == score.max())[-1]
    return Threshold(*(float(x[best]) for x in (thresholds, precision, recall, f1)))
