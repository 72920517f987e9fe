"""Few-shot linear regression on frozen features, section 4.1 of arXiv 2010.11929.

A few examples of each class, drawn with a seed, are standardised by their own mean and deviation
and get a large constant as bias; targets are 1 for an example's class and -1 for all others.
Regularised least squares has a closed form; whichever of its two forms is smaller is factorised,
once for all values of l2. These are the choices of the authors' own evaluator
(github.com/google-research/big_vision, evaluators/fewshot_lsr.py), whose draws these are too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import scipy  # which imports its parts when they are used

from vit_jax.core.errors import UserError

BIAS = 100.0  # of the constant feature: so large that it is hardly regularised
SMALLEST_DEVIATION = 1e-5  # added to every feature's deviation
L2_TO_CHOOSE = tuple(2.0**i for i in range(-6, 19, 3))
HELD_OUT = 0.2  # of each class's shots, at least one, to choose l2 on
_ROWS = 4096  # of a product in float64


class Factorised(NamedTuple):
    """Least squares of one set of examples, for any l2; R is the smaller of N and D + 1."""

    left: np.ndarray  # [D + 1, R]
    right: np.ndarray  # [R, C]
    eigenvalues: np.ndarray  # [R]
    mean: np.ndarray  # [D], of the examples
    deviation: np.ndarray  # the same

    def solve(self, l2: float) -> np.ndarray:
        """Weights, [D + 1, C] float64; those of the bias are last."""
        # The smallest eigenvalues of a rank-deficient matrix may be rounded to below zero.
        return (self.left / (np.maximum(self.eigenvalues, 0) + l2)) @ self.right

    def scores(self, weights: np.ndarray, features: np.ndarray) -> np.ndarray:
        """[M, D] -> [M, C] float64; the class is that of the largest."""
        return _with_bias((features - self.mean) / self.deviation) @ weights

    def accuracy(self, weights: np.ndarray, features: np.ndarray, labels: np.ndarray) -> float:
        """The share of examples whose largest score is that of their label."""
        return accuracy(lambda x: self.scores(weights, x), features, labels, rows=_ROWS)


def accuracy(
    scores: Callable[[np.ndarray], np.ndarray],
    features: np.ndarray,
    labels: np.ndarray,
    *,
    rows: int,
) -> float:
    """The share of examples whose largest of scores(features), [N, C], is that of their label.

    Those whose scores are not all finite are wrong: of NaN the first is the largest. `rows`
    examples are scored at once.
    """
    right = 0
    for start in range(0, len(labels), rows):
        part = scores(features[start : start + rows])
        hits = part.argmax(axis=1) == labels[start : start + rows]
        right += np.sum(hits & np.isfinite(part).all(axis=1))
    return float(right / len(labels))


class FewShotResult(NamedTuple):
    """Accuracies of one draw."""

    fixed: float  # with the l2 that was given
    # With the best l2 on shots held out; nan for a single shot, of which there are none.
    chosen: float
    chosen_l2: float  # that l2


def draw(
    labels: np.ndarray,
    *,
    num_classes: int,
    shots: int,
    seed: int,
    class_names: Sequence[str] | None = None,
    field: str = "shots",
) -> np.ndarray:
    """Draws the positions of `shots` examples of each class, [C, shots]; fewer are a prefix."""
    numbers = np.random.default_rng(seed)
    # By class, and in each by position: all labels are looked at once, however many classes.
    order = np.argsort(labels, kind="stable")
    bounds = np.searchsorted(labels[order], np.arange(num_classes + 1))
    positions = [numbers.permutation(order[a:b]) for a, b in itertools.pairwise(bounds)]
    lacking = [c for c in range(num_classes) if len(positions[c]) < shots]
    if lacking:
        names = class_names or range(num_classes)
        named = ", ".join(f"{names[c]} ({len(positions[c])})" for c in lacking[:5])
        raise UserError(
            f"{len(lacking)} of {num_classes} classes have fewer examples: "
            f"{named}{', ...' if len(lacking) > 5 else ''}.",
            field=field,
            value=shots,
        )
    return np.array([each[:shots] for each in positions])


def factorise(features: np.ndarray, labels: np.ndarray, num_classes: int) -> Factorised:
    """Least squares of features [N, D] and labels [N]; in float64."""
    features = np.asarray(features, np.float64)
    mean, deviation = features.mean(axis=0), features.std(axis=0) + SMALLEST_DEVIATION
    x = _with_bias((features - mean) / deviation)
    one_hot = scipy.sparse.csr_array(
        (np.ones(len(x)), (np.arange(len(x)), labels)), shape=(len(x), num_classes)
    )
    # The targets are 2 one_hot - 1.

    def with_targets(rows: np.ndarray) -> np.ndarray:
        return 2 * (one_hot.T @ rows).T - rows.sum(axis=0)[:, None]

    if len(x) >= x.shape[1]:
        eigenvalues, left = scipy.linalg.eigh(x.T @ x, overwrite_a=True, driver="evd")
        right = left.T @ with_targets(x)
    else:
        eigenvalues, q = scipy.linalg.eigh(x @ x.T, overwrite_a=True, driver="evd")
        left, right = x.T @ q, with_targets(q)
    return Factorised(left, right, eigenvalues, mean, deviation)


def evaluate(
    train: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray],
    *,
    num_classes: int,
    shots: int,
    seed: int,
    fixed_l2: float,
) -> FewShotResult:
    """Accuracy on `test` from a few shots of `train`; each is finite features [N, D], labels [N].

    l2 is chosen on shots that are held out, then all of them are used; `test` is scored once for
    each of the two l2. UserError if a class has too few examples.
    """
    positions = draw(train[1], num_classes=num_classes, shots=shots, seed=seed)

    def pick(at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return train[0][at.ravel()], train[1][at.ravel()]

    whole = factorise(*pick(positions), num_classes)
    fixed = whole.accuracy(whole.solve(fixed_l2), *test)
    if shots == 1:
        return FewShotResult(fixed, math.nan, math.nan)
    held_out = max(1, round(HELD_OUT * shots))
    part = factorise(*pick(positions[:, held_out:]), num_classes)
    scores = [
        (part.accuracy(part.solve(l2), *pick(positions[:, :held_out])), l2) for l2 in L2_TO_CHOOSE
    ]
    _, l2 = max(scores)  # among equals the largest
    return FewShotResult(fixed, whole.accuracy(whole.solve(l2), *test), l2)


def _with_bias(x: np.ndarray) -> np.ndarray:
    return np.pad(x, ((0, 0), (0, 1)), constant_values=BIAS)
