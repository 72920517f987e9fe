import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.learning.losses import main_labels, top_k_correct

LOGITS = jnp.array([[4.0, 3.0, 2.0, 1.0], [1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 0.0, 0.0]])


@pytest.mark.parametrize(("k", "expected"), [(1, [0, 1, 0]), (2, [1, 1, 1]), (5, [1, 1, 1])])
def test_one_label(k, expected):
    targets = jnp.eye(4, dtype=bool)[jnp.array([1, 3, 1])]
    correct = top_k_correct(LOGITS, targets, k)
    np.testing.assert_array_equal(correct, expected)
    assert correct.dtype == jnp.float32


def test_any_of_several_labels_counts_and_no_label_does_not():
    targets = jnp.array([[0, 1, 1, 0], [1, 0, 0, 1], [0, 0, 0, 0]], bool)
    np.testing.assert_array_equal(top_k_correct(LOGITS, targets, 1), [0, 1, 0])
    np.testing.assert_array_equal(top_k_correct(LOGITS, targets, 5), [1, 1, 0])


def test_an_untrained_head_does_not_look_accurate():
    """All logits equal: as good as guessing one class, not right everywhere."""
    targets = jnp.eye(4, dtype=bool)
    assert top_k_correct(jnp.zeros((4, 4)), targets, 1).sum() == 1


@pytest.mark.parametrize("k", [1, 4])
def test_nan_is_right_for_no_class(k):
    logits = jnp.array([[jnp.nan] * 4, [9.0, jnp.nan, 0.0, 0.0], [9.0, -jnp.inf, 0.0, 0.0]])
    targets = jnp.zeros((3, 4), bool).at[:, 0].set(True)
    np.testing.assert_array_equal(top_k_correct(logits, targets, k), [0, 0, 1])


def test_main_labels():
    targets = jnp.array([[0, 1, 1], [0.3, 0.7, 0], [0.4, 0, 0.9], [0, 0, 0]])
    expected = [[0, 1, 1], [0, 1, 0], [0, 0, 1], [0, 0, 0]]
    np.testing.assert_array_equal(main_labels(targets), expected)
