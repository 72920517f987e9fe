"""Precision, recall and F1, by hand and beside scikit-learn's."""

import numpy as np
import pytest

from vit_jax.probes import by_class

ROUNDING = 1e-12  # of quotients of small whole numbers


def test_images_of_one_class():
    #                   right, wrong, right, wrong; class 2 is never predicted, 3 has no images
    labels, predicted = np.array([[0], [0], [1], [2]]), np.array([0, 3, 1, 1])
    counts = by_class.count_largest(labels, predicted, 5)
    assert [x.tolist() for x in counts] == [
        [2, 1, 1, 0, 0], [1, 1, 0, 0, 0], [1, 2, 0, 1, 0], [1, 1, 0, 0, 0],
    ]  # fmt: skip
    nan = np.nan
    np.testing.assert_array_equal(counts.precision, [1, 0.5, nan, 0, nan])
    np.testing.assert_array_equal(counts.recall, [0.5, 1, 0, nan, nan])
    np.testing.assert_allclose(counts.f1, [2 / 3, 2 / 3, 0, nan, nan], rtol=ROUNDING)
    assert counts.means() == pytest.approx(
        {"macro_precision": 1.5 / 3, "macro_recall": 1.5 / 3, "macro_f1": 4 / 9}, abs=ROUNDING
    )


def test_images_of_several_classes_count_for_each_and_any_is_right():
    labels = np.array([[0, -1], [0, -1], [0, 2], [1, -1], [1, 2], [0, 0]])
    counts = by_class.count_largest(labels, np.array([0, 1, 1, 2, 2, 2]), 4)
    assert counts.images.tolist() == [4, 2, 2, 0]
    assert counts.found.tolist() == [1, 1, 1, 0]  # the fifth is right for both of its classes
    assert counts.predicted.tolist() == [1, 2, 3, 0]
    assert counts.right.tolist() == [1, 0, 1, 0]
    assert labels[5].tolist() == [0, 0]


def compare(counts, truth, predicted, classes):
    metrics = pytest.importorskip("sklearn.metrics")
    score = metrics.precision_recall_fscore_support
    shares = counts.precision, counts.recall, counts.f1
    *expected, support = score(truth, predicted, labels=range(classes), zero_division=np.nan)
    seen = support > 0
    np.testing.assert_array_equal(counts.images, support)
    for share, theirs in zip(shares, expected, strict=True):
        np.testing.assert_allclose(share[seen], theirs[seen], rtol=ROUNDING)
    assert np.isnan(counts.recall[~seen]).all() and np.isnan(counts.f1[~seen]).all()
    means = score(
        truth, predicted, labels=np.flatnonzero(seen), average="macro", zero_division=0
    )[:3]  # fmt: skip
    assert list(counts.means().values()) == pytest.approx(means, abs=ROUNDING)


@pytest.mark.parametrize("classes", [1, 2, 7, 300])  # of 300 most have neither
def test_scikit_learn_agrees(classes):
    rng = np.random.default_rng(classes)
    truth, predicted = rng.integers(0, classes, (2, 100))
    counts = by_class.count_largest(truth[:, None], predicted, classes)
    compare(counts, truth, predicted, classes)


def test_scikit_learn_agrees_on_several_classes():
    truth, predicted = np.random.default_rng(0).random((2, 100, 7)) < [[[0.3]], [[0.1]]]
    truth[:, 5] = predicted[:, 6] = False
    compare(by_class.count_each(truth, predicted), truth, predicted, 7)
