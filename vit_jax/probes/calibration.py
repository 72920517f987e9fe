"""How far a classifier's probabilities can be believed.

Expected calibration error and temperature scaling as in arXiv 1706.04599.
"""

from typing import NamedTuple

import numpy as np
import scipy.optimize
from scipy.special import log_softmax

BINS = 15  # of confidence, of equal width
_TEMPERATURES = (0.05, 20.0)


class Calibration(NamedTuple):
    """Of probabilities on one set.

    Attributes:
      ece: mean distance of confidence and accuracy over bins, by their number of examples.
      nll: mean negative logarithm of the label's probability.
      brier: mean squared distance of probabilities and the label's one-hot vector, summed over
        classes: between 0 and 2.
    """

    ece: float
    nll: float
    brier: float


def calibration(logits: np.ndarray, labels: np.ndarray, temperature: float = 1.0) -> Calibration:
    """Of logits [N, C] over `temperature`, and labels [N]."""
    logs = log_softmax(np.asarray(logits, np.float64) / temperature, axis=1)
    probabilities = np.exp(logs)
    confidence, correct = probabilities.max(axis=1), logs.argmax(axis=1) == labels
    # Bins are open below and closed above, as in the authors' code.
    bins = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    gaps = np.bincount(bins, confidence - correct, minlength=BINS)
    of_label = np.take_along_axis(probabilities, labels[:, None], axis=1)[:, 0]
    brier = (probabilities**2).sum(axis=1) - 2 * of_label + 1
    nll = -np.take_along_axis(logs, labels[:, None], axis=1).mean()
    return Calibration(float(np.abs(gaps).sum() / len(labels)), float(nll), float(brier.mean()))


def best_temperature(logits: np.ndarray, labels: np.ndarray) -> float:
    """The temperature of the least negative log-likelihood on this set.

    Choose it on other examples than those that it is reported for.
    """
    found = scipy.optimize.minimize_scalar(
        lambda log: calibration(logits, labels, float(np.exp(log))).nll,
        bounds=tuple(np.log(_TEMPERATURES)),
        method="bounded",
        options={"xatol": 1e-5},
    )
    return float(np.exp(found.x))
