import tracemalloc

import numpy as np
import pytest

from vit_jax.probes.calibration import (
    _PART_BYTES,
    best_temperature,
    calibration,
    cross_fitted,
    too_few,
)


def test_by_hand():
    logits = np.log([[0.9, 0.1], [0.6, 0.4], [0.3, 0.7]])
    found = calibration(logits, np.array([0, 1, 1]))
    assert found.nll == pytest.approx(-np.log([0.9, 0.4, 0.7]).mean())
    assert found.brier == pytest.approx(2 * (0.1**2 + 0.6**2 + 0.3**2) / 3)
    assert found.ece == pytest.approx((0.1 + 0.6 + 0.3) / 3)  # each in a bin of its own


def test_confidence_on_the_edge_of_a_bin_belongs_below():
    logits = np.log([[0.6, 0.4], [0.59, 0.41]])  # 0.6 = 9 / 15
    assert calibration(logits, np.array([0, 1])).ece == pytest.approx(abs(1.19 - 1) / 2)


def drawn(n, scale=1.0, seed=0):
    """Logits, times `scale`, and labels that are drawn from them."""
    numbers = np.random.default_rng(seed)
    logits = numbers.normal(size=(n, 5)) * 2
    p = np.exp(logits)
    cumulated = (p / p.sum(1, keepdims=True)).cumsum(1)
    return logits * scale, (numbers.random((n, 1)) > cumulated).sum(1)


def test_equals_torch():
    torch = pytest.importorskip("torch")
    logits, labels = drawn(5000, scale=3.0)  # more than are computed at once
    z, y = torch.tensor(logits), torch.tensor(labels)
    inverse = torch.ones((), dtype=z.dtype, requires_grad=True)
    optimizer = torch.optim.LBFGS([inverse], tolerance_grad=1e-12, tolerance_change=0)

    def loss():
        optimizer.zero_grad()
        value = torch.nn.functional.cross_entropy(z * inverse, y)
        value.backward()
        return value

    for _ in range(5):
        optimizer.step(loss)
    temperature = 1 / inverse.item()
    assert best_temperature(logits, labels, prior=0) == pytest.approx(temperature, rel=1e-5)
    found = calibration(logits, labels, temperature)
    p = torch.softmax(z / temperature, dim=1)
    assert found.nll == pytest.approx(loss().item(), rel=1e-9)
    one_hot = torch.nn.functional.one_hot(y, 5)
    assert found.brier == pytest.approx((p - one_hot).square().sum(1).mean().item(), rel=1e-9)
    (confidence, chosen), ece = p.max(1), 0.0
    for edge in range(15):  # equation 3 of arXiv 1706.04599
        in_bin = (confidence > edge / 15) & (confidence <= (edge + 1) / 15)
        gap = (confidence - (chosen == y).double())[in_bin].sum().abs().item()
        ece += gap / len(y)
    assert found.ece == pytest.approx(ece, rel=1e-9) and ece > 0.01


def test_each_half_is_scored_by_the_others_temperature():
    logits, labels = drawn(2000)
    logits[::2] *= 4
    even, odd = cross_fitted(logits, labels)[:2]
    assert (even, odd) == (pytest.approx(1, rel=0.1), pytest.approx(4, rel=0.1))
    assert cross_fitted(logits[:1], labels[:1]).tolist() == [1.0]


def test_a_temperature_beyond_the_range_is_its_end():
    sure = np.array([[1.0, 0.0], [0.0, 1.0]])
    assert best_temperature(sure, np.array([0, 1]), prior=0) == pytest.approx(0.05)
    assert best_temperature(sure, np.array([1, 0]), prior=0) == pytest.approx(20)


def test_the_prior_matters_in_small_sets_alone():
    """Scaled by 1 and by 3; 40 right answers in a half would give 0.05 without it."""
    sure = np.tile(np.array([[1.5, 0.0], [0.0, 1.5]]), (20, 1))
    labels = np.tile([0, 1], 20)
    assert best_temperature(sure, labels, prior=0) == pytest.approx(0.05)
    # The sum's slope is 0 at b = 1 / T: 40 * 1.5 / (1 + exp(1.5 b)) = 3 (1 - 1 / b).
    temperature = best_temperature(sure, labels)
    odds = 40 * 1.5 / (1 + np.exp(1.5 / temperature))
    assert odds == pytest.approx(3 * (1 - temperature), rel=1e-4) and 0.3 < temperature < 0.6
    logits, labels = drawn(20_000)
    for scale in (1, 3):
        found = [best_temperature(logits * scale, labels, prior=prior) for prior in (0, 3)]
        assert found[1] == pytest.approx(found[0], rel=1e-3)


def test_scaling_a_small_set_costs_little():
    """Probabilities that are right as they are, of 80 examples: the median and the worst of 50."""
    costs = []
    for seed in range(50):
        numbers = np.random.default_rng(seed)
        logits = numbers.normal(size=(80, 5)) * 5
        cumulated = np.exp(logits - logits.max(1, keepdims=True))
        cumulated = (cumulated / cumulated.sum(1, keepdims=True)).cumsum(1)
        labels = (numbers.random((80, 1)) > cumulated).sum(1)
        scaled = calibration(logits, labels, cross_fitted(logits, labels)).nll
        costs.append(scaled - calibration(logits, labels).nll)
    assert np.median(costs) < 0.02 and max(costs) < 0.15


def test_a_half_without_errors_is_too_few():
    logits, labels = drawn(40)
    assert not too_few(logits, labels)
    right = np.where(np.arange(40) % 2, logits.argmax(1), labels)
    assert too_few(logits, right) and too_few(logits[:1], labels[:1])


@pytest.mark.parametrize("classes", [1000, 21841])
def test_memory_beside_the_logits_is_bounded(classes):
    """Where 4,096 rows at once would be an array of 33 MB for 1,000 classes, or 716 MB."""
    numbers = np.random.default_rng(0)
    logits = numbers.normal(size=(5_000_000 // classes, classes)).astype(np.float32)
    labels = numbers.integers(classes, size=len(logits))
    tracemalloc.start()
    calibration(logits, labels, cross_fitted(logits, labels))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 6 * _PART_BYTES
