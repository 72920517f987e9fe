import numpy as np
import pytest

from vit_jax.probes.calibration import best_temperature, calibration


def test_by_hand():
    logits = np.log([[0.9, 0.1], [0.6, 0.4], [0.3, 0.7]])
    found = calibration(logits, np.array([0, 1, 1]))
    assert found.nll == pytest.approx(-np.log([0.9, 0.4, 0.7]).mean())
    assert found.brier == pytest.approx(2 * (0.1**2 + 0.6**2 + 0.3**2) / 3)
    assert found.ece == pytest.approx((0.1 + 0.6 + 0.3) / 3)  # each in a bin of its own


def test_confidence_on_the_edge_of_a_bin_belongs_below():
    logits = np.log([[0.6, 0.4], [0.59, 0.41]])  # 0.6 = 9 / 15
    assert calibration(logits, np.array([0, 1])).ece == pytest.approx(abs(1.19 - 1) / 2)


def test_certain_and_right_is_perfect():
    found = calibration(np.array([[1000.0, 0], [0, 1000.0]]), np.array([0, 1]))
    assert found == (0, 0, 0)


def test_the_temperature_of_drawn_labels_is_found():
    numbers = np.random.default_rng(0)
    logits = numbers.normal(size=(20_000, 5)) * 2
    p = np.exp(logits)
    cumulated = (p / p.sum(1, keepdims=True)).cumsum(1)
    labels = (numbers.random((20_000, 1)) > cumulated).sum(1)
    assert best_temperature(logits * 3, labels) == pytest.approx(3, rel=0.03)
    assert calibration(logits, labels).ece < 0.02 < calibration(logits * 3, labels).ece
