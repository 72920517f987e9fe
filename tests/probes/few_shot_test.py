import math

import numpy as np
import pytest

from tests.messages import refused
from vit_jax.probes import few_shot


def examples(n, dim=12, classes=4, seed=0, noise=1.0):
    """Features around a mean for each class, and labels; every class has n examples."""
    numbers = np.random.default_rng(seed)
    labels = numbers.permutation(np.repeat(np.arange(classes), n))
    means = np.random.default_rng(99).normal(size=(classes, dim))
    return (means[labels] + noise * numbers.normal(size=(len(labels), dim))), labels


def solved(features, labels, num_classes, l2):
    """The normal equations, as they are written down."""
    x = (features - features.mean(0)) / (features.std(0) + 1e-5)
    x = np.concatenate([x, np.full((len(x), 1), 100.0)], axis=1)
    targets = 2 * np.eye(num_classes)[labels] - 1
    return np.linalg.solve(x.T @ x + l2 * np.eye(x.shape[1]), x.T @ targets)


@pytest.mark.parametrize("shots", [2, 3, 40])  # fewer examples than dimensions, as many, more
@pytest.mark.parametrize("l2", [1e-2, 1.0, 2.0**10, 2.0**20])
def test_weights_solve_the_normal_equations(shots, l2):
    features, labels = examples(shots)
    weights = few_shot.factorise(features, labels, 4).solve(l2)
    np.testing.assert_allclose(weights, solved(features, labels, 4, l2), rtol=1e-6, atol=1e-9)


def test_a_constant_feature_and_equal_examples_do_no_harm():
    features, labels = examples(10)
    features[:, 3] = 5.0
    twice = np.concatenate([features, features]), np.concatenate([labels, labels])
    weights = few_shot.factorise(*twice, 4).solve(1.0)
    assert np.isfinite(weights).all() and weights[3] == pytest.approx(0, abs=1e-6)


def test_draws_are_those_of_a_look_at_all_labels_for_each_class():
    labels = np.random.default_rng(0).integers(0, 9, 400)
    labels[labels == 3] = 4  # whose examples nobody has
    numbers = np.random.default_rng(7)
    expected = [numbers.permutation(np.flatnonzero(labels == c))[:2] for c in (0, 1, 2)]
    np.testing.assert_array_equal(
        few_shot.draw(labels, num_classes=3, shots=2, seed=7), np.array(expected)
    )
    with refused("3 (0)"):
        few_shot.draw(labels, num_classes=9, shots=2, seed=7)


def test_draws_are_of_each_class_and_nested():
    _, labels = examples(10)
    five = few_shot.draw(labels, num_classes=4, shots=5, seed=3)
    assert (labels[five] == np.arange(4)[:, None]).all()
    assert len(np.unique(five)) == 20
    np.testing.assert_array_equal(
        few_shot.draw(labels, num_classes=4, shots=2, seed=3), five[:, :2]
    )
    assert (few_shot.draw(labels, num_classes=4, shots=5, seed=4) != five).any()


def test_l2_is_chosen_without_the_test():
    """Where features are noise but for a few, the l2 of large images is wrong for small sets."""
    train, test = examples(40, dim=60, noise=3.0), examples(100, dim=60, noise=3.0, seed=1)
    options = {"num_classes": 4, "shots": 10, "seed": 0, "fixed_l2": 1024.0}
    result = few_shot.evaluate(train, test, **options)
    wrong = (test[0], (test[1] + 1) % 4)
    on_wrong = few_shot.evaluate(train, wrong, **options)
    assert result.chosen_l2 == on_wrong.chosen_l2 in few_shot.L2_TO_CHOOSE
    drawn = few_shot.draw(train[1], num_classes=4, shots=10, seed=0).ravel()
    chosen = few_shot.factorise(train[0][drawn], train[1][drawn], 4)
    assert chosen.accuracy(chosen.solve(result.chosen_l2), *test) == result.chosen
    assert chosen.accuracy(chosen.solve(1024.0), *test) == result.fixed


def test_a_single_shot_has_none_to_hold_out():
    train, test = examples(4), examples(20, seed=1)
    result = few_shot.evaluate(train, test, num_classes=4, shots=1, seed=0, fixed_l2=1024.0)
    assert result.fixed > 0.4 and math.isnan(result.chosen)
