"""Precision, recall and F1 of each class."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

MEANS = ("macro_precision", "macro_recall", "macro_f1")


class ClassCounts(NamedTuple):
    """Numbers of images by class, int64 [C]. One of several classes counts for each of them."""

    images: np.ndarray  # of the class
    found: np.ndarray  # of these, those that are right: taken for a class that they are of
    predicted: np.ndarray  # taken for the class
    # Of these, those that are of the class; the same as `found` where images have one class.
    right: np.ndarray

    @property
    def precision(self) -> np.ndarray:
        """Shares of `predicted`, [C]; NaN for a class that no image is taken for."""
        return _share(self.right, self.predicted)

    @property
    def recall(self) -> np.ndarray:
        """Shares of `images`, [C]; NaN for a class without images."""
        return _share(self.found, self.images)

    @property
    def f1(self) -> np.ndarray:
        """Harmonic means of both, [C]; NaN for a class without images, 0 where nothing is right."""
        precision, recall = np.nan_to_num(self.precision), self.recall
        return _share(2 * precision * recall, precision + recall, np.where(self.images, 0, np.nan))

    def means(self) -> dict[str, float]:
        """MEANS over the classes that have images; precision is 0 where none is taken for one."""
        seen = self.images > 0
        by_class = (np.nan_to_num(self.precision), self.recall, self.f1)
        return {name: float(x[seen].mean()) for name, x in zip(MEANS, by_class, strict=True)}


def count_largest(labels: np.ndarray, prediction: np.ndarray, num_classes: int) -> ClassCounts:
    """Counts images with labels [N, K], padded with negative ones, and one predicted class [N]."""
    labels = np.sort(labels, axis=1)
    labels[:, 1:][labels[:, 1:] == labels[:, :-1]] = -1  # given twice
    rows, columns = np.nonzero(labels >= 0)
    right = (labels == prediction[:, None]).any(axis=1)
    by_class = ((labels[rows, columns], right[rows]), (prediction, right))
    counts = [
        np.bincount(classes[chosen], minlength=num_classes)
        for classes, right in by_class
        for chosen in (slice(None), right)
    ]
    return ClassCounts(*counts)


def count_each(labels: np.ndarray, prediction: np.ndarray) -> ClassCounts:
    """Counts images whose classes are decided one by one, bool [N, C] each."""
    images, predicted, right = (x.sum(axis=0) for x in (labels, prediction, labels & prediction))
    return ClassCounts(images, right, predicted, right)


def _share(of: np.ndarray, whole: np.ndarray, else_: np.ndarray | float = np.nan) -> np.ndarray:
    """of / whole, `else_` where there is nothing."""
    return np.where(whole > 0, of / np.where(whole > 0, whole, 1), else_)
