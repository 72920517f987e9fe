import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.training import objective

ROUNDING = 1e-6  # relative; a few float32 operations

LOGITS = np.array([[2.0, -1.0, 0.5, 0.0], [0.0, 0.0, 0.0, 0.0], [30.0, -30.0, 5.0, 1.0]])


def numpy_softmax_loss(logits, targets):
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return -(targets * log_p).sum(-1)


def test_multi_hot():
    labels = jnp.array([[2, -1, -1], [0, 3, -1], [1, 1, -1], [-1, -1, -1]])
    np.testing.assert_array_equal(
        objective.multi_hot(labels, 4), [[0, 0, 1, 0], [1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 0, 0]]
    )


def test_weights_of_labels():
    """A label listed twice has the larger weight; one of weight 0 is not a label."""
    labels = jnp.array([[2, 0, -1], [1, 1, 3], [3, -1, -1]])
    weights = jnp.array([[0.25, 1, 0], [0.5, 0.75, 0], [0, 0, 0]])
    targets = objective.multi_hot(labels, 4, weights)
    np.testing.assert_array_equal(targets, [[1, 0, 0.25, 0], [0, 0.75, 0, 0], [0, 0, 0, 0]])
    np.testing.assert_array_equal(
        objective.multi_hot(labels, 4, jnp.ones([3, 3])), objective.multi_hot(labels, 4)
    )
    divided = np.array([[0.8, 0, 0.2, 0], [0, 1, 0, 0], [0, 0, 0, 0]])
    np.testing.assert_allclose(
        objective.softmax_cross_entropy(jnp.array(LOGITS), targets),
        numpy_softmax_loss(LOGITS, divided),
        rtol=ROUNDING,
    )


def test_smoothing_keeps_the_sum_of_a_row():
    targets = jnp.array([[0.0, 1.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    np.testing.assert_allclose(
        objective.smooth_labels(targets, 0.2),
        [[0.05, 0.85, 0.05, 0.05], [0.9, 0.9, 0.1, 0.1], [0, 0, 0, 0]],
        rtol=ROUNDING,
    )
    np.testing.assert_array_equal(objective.smooth_labels(targets, 0.0), targets)


def test_softmax_of_one_label():
    targets = np.eye(4)[[0, 1, 2]]
    np.testing.assert_allclose(
        objective.softmax_cross_entropy(jnp.array(LOGITS), targets),
        numpy_softmax_loss(LOGITS, targets),
        rtol=ROUNDING,
    )


def test_softmax_of_several_labels_targets_their_uniform_distribution():
    targets = np.array([[1.0, 1.0, 0.0, 0.0], [0.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    even = np.array([[0.5, 0.5, 0, 0], [0, 1 / 3, 1 / 3, 1 / 3], [0, 0, 0, 0]])
    np.testing.assert_allclose(
        objective.softmax_cross_entropy(jnp.array(LOGITS), targets),
        numpy_softmax_loss(LOGITS, even),
        rtol=ROUNDING,
    )


def test_sigmoid_is_summed_over_classes():
    targets = np.array([[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0], [0.3, 0.0, 0.7, 0.0]])
    yes, no = np.logaddexp(0, -LOGITS), np.logaddexp(0, LOGITS)  # -log p, -log(1 - p)
    expected = (targets * yes + (1 - targets) * no).sum(-1)
    loss = objective.sigmoid_cross_entropy(jnp.array(LOGITS), targets)
    np.testing.assert_allclose(loss, expected, rtol=ROUNDING)


def test_sigmoid_at_the_head_bias_of_the_recipes():
    """ln(1 + e^10) for the label, ln(1 + e^-10) for each of the other 21,842 classes."""
    logits = jnp.full((1, 21843), -10.0)
    loss = objective.sigmoid_cross_entropy(logits, objective.multi_hot(jnp.array([[7]]), 21843))
    np.testing.assert_allclose(loss, [np.logaddexp(0, 10) + 21842 * np.exp(-10)], rtol=1e-4)


@pytest.mark.parametrize("name", objective.LOSSES)
def test_large_logits_stay_finite_and_bfloat16_is_widened(name):
    loss = objective.LOSSES[name](jnp.array([[1e4, -1e4]], jnp.bfloat16), jnp.array([[0.0, 1.0]]))
    assert loss.dtype == jnp.float32 and loss.shape == (1,) and np.isfinite(loss).all()
