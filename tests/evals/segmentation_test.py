"""Scores of segmentation, beside scikit-learn's."""

import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.evals.segmentation import confusion, scores_of

SAME_MATH = 1e-12


def case(classes=5, absent=()):
    rng = np.random.default_rng(0)
    mask, predicted = rng.integers(0, classes + 1, (40, 30)), rng.integers(0, classes, (40, 30))
    for c in absent:
        mask[mask == c + 1], predicted[predicted == c] = 0, (c + 1) % classes
    return mask, predicted


@pytest.mark.parity
@pytest.mark.parametrize("absent", [(), (2,)])
def test_the_numbers_are_those_of_the_confusion_matrix(absent):
    metrics = pytest.importorskip("sklearn.metrics")
    mask, predicted = case(absent=absent)
    known = mask > 0
    true, said = mask[known] - 1, predicted[known]
    matrix = np.asarray(confusion(jnp.asarray(mask), jnp.asarray(predicted), 5))
    np.testing.assert_array_equal(matrix, metrics.confusion_matrix(true, said, labels=range(5)))
    scores = scores_of(matrix)
    classes = [c for c in range(5) if c not in absent]
    iou = metrics.jaccard_score(true, said, labels=classes, average=None)
    np.testing.assert_allclose(scores.iou[classes], iou, rtol=SAME_MATH)
    np.testing.assert_allclose(scores.miou, iou.mean(), rtol=SAME_MATH)
    np.testing.assert_allclose(scores.pixel_accuracy, metrics.accuracy_score(true, said))
    np.testing.assert_allclose(scores.class_accuracy, metrics.balanced_accuracy_score(true, said))
    assert all(np.isnan(scores.iou[c]) for c in absent)
