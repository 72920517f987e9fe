"""Calibration of a classifier's probabilities.

Expected calibration error and temperature scaling as in arXiv 1706.04599.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import scipy  # which imports its parts when they are used

BINS = 15  # of confidence, of equal width
TEMPERATURES = (0.05, 20.0)  # those that are looked through
PRIOR = 3.0  # strength, in nats: 90 % of it lies between temperatures of 0.39 and 2.2
_PART_BYTES = 2**24  # of an array in float64, of which a computation has up to five


class Calibration(NamedTuple):
    """The calibration of probabilities on one set."""

    ece: float  # mean distance of confidence and accuracy over bins, by their number of examples
    nll: float  # mean negative logarithm of the label's probability
    # Mean squared distance of probabilities and the label's one-hot vector, summed over classes:
    # between 0 and 2.
    brier: float


class Reliability(NamedTuple):
    """Sums over the examples of each bin of confidence, [BINS] each, and their number."""

    confidence: np.ndarray
    correct: np.ndarray
    examples: np.ndarray

    @property
    def ece(self) -> float:
        """The expected calibration error."""
        return float(np.abs(self.confidence - self.correct).sum() / self.examples.sum())


def reliability(confidence: np.ndarray, correct: np.ndarray) -> Reliability:
    """Bins the largest probabilities [N] and whether their classes are right [N].

    Bins are open below and closed above, as in the authors' code.
    """
    bins = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    sums = (np.bincount(bins, weights, minlength=BINS) for weights in (confidence, correct, None))
    return Reliability(*sums)


def calibration(
    logits: np.ndarray, labels: np.ndarray, temperature: float | np.ndarray = 1.0
) -> Calibration:
    """Measures logits [N, C] over `temperature`, one or [N], against labels [N]."""
    temperatures = np.broadcast_to(temperature, len(labels))
    each = [_each(logits[rows], labels[rows], temperatures[rows, None]) for rows in _parts(logits)]
    confidence, correct, nll, brier = (np.concatenate(x) for x in zip(*each, strict=True))
    return Calibration(reliability(confidence, correct).ece, float(nll.mean()), float(brier.mean()))


def _each(
    logits: np.ndarray, labels: np.ndarray, temperatures: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Confidence, whether it is right, negative log-likelihood and Brier score of each example."""
    logs = scipy.special.log_softmax(logits.astype(np.float64) / temperatures, axis=1)
    probabilities = np.exp(logs)
    of_label = np.take_along_axis(logs, labels[:, None], axis=1)[:, 0]
    brier = (probabilities**2).sum(axis=1) - 2 * np.exp(of_label) + 1
    return probabilities.max(axis=1), logs.argmax(axis=1) == labels, -of_label, brier


def best_temperature(logits: np.ndarray, labels: np.ndarray, prior: float = PRIOR) -> float:
    """The most probable temperature T by this set, within TEMPERATURES.

    It has the least summed negative log-likelihood plus prior * (1 / T - log(1 / T)), a gamma
    distribution of 1 / T whose mode is 1. With prior=0, as in the authors' code, a set without
    errors would have a temperature of 0, by which one error elsewhere costs any number of nats.
    Choose it on other examples than those that it is reported for.
    """

    def slope(inverse: float) -> float:
        """Returns the derivative of the sum by 1 / T, in which it is convex."""
        sums = [prior * (1 - 1 / inverse)]
        for rows in _parts(logits):
            z = logits[rows].astype(np.float64)
            p = np.exp(scipy.special.log_softmax(inverse * z, axis=1))
            of_label = np.take_along_axis(z, labels[rows, None], axis=1)
            sums.append((p * (z - of_label)).sum())
        return float(np.sum(sums))

    least, most = (1 / t for t in reversed(TEMPERATURES))
    if slope(least) >= 0:
        return 1 / least
    if slope(most) <= 0:
        return 1 / most
    return float(1 / scipy.optimize.brentq(slope, least, most, rtol=1e-6))


def cross_fitted(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """A temperature for each example [N], chosen on the half that it does not belong to.

    The halves are every other example; a single one gets 1. `too_few` says when this is mostly
    PRIOR's choice.
    """
    if len(labels) < 2:
        return np.ones(len(labels))
    halves = [best_temperature(logits[start::2], labels[start::2]) for start in (1, 0)]
    return np.where(np.arange(len(labels)) % 2 == 0, *halves)


def too_few(logits: np.ndarray, labels: np.ndarray) -> bool:
    """Returns whether a half of the set has no error, so that PRIOR alone bounds it."""
    wrong = logits.argmax(axis=1) != labels
    return not (wrong[::2].any() and wrong[1::2].any())


def _parts(logits: np.ndarray) -> Iterator[slice]:
    rows = max(_PART_BYTES // (8 * logits.shape[1]), 1)
    return (slice(start, start + rows) for start in range(0, len(logits), rows))
