import numpy as np
import pytest

from tests.probes.few_shot_test import examples
from vit_jax.probes import logistic


def test_equals_scikit_learn():
    linear_model = pytest.importorskip("sklearn.linear_model")
    train, test = examples(100, noise=3.0), examples(500, noise=3.0, seed=1)
    theirs = linear_model.LogisticRegression(C=1 / (1e-2 * len(train[1])), tol=1e-8, max_iter=1000)
    theirs.fit(*train)
    ours = logistic.fit_lbfgs(train, num_classes=4, l2=1e-2)
    np.testing.assert_allclose(ours.kernel, theirs.coef_.T, atol=2e-3)
    assert ours.accuracy(test) == pytest.approx(theirs.score(*test), abs=1e-3)


def test_a_grid_of_learning_rates_equals_each_alone():
    train = examples(60, noise=2.0)
    fit = lambda rates: logistic.fit_sgd(
        train, num_classes=4, learning_rates=rates, epochs=3, batch_size=16, seed=1
    )
    together = fit((0.01, 0.1, 1.0))
    for probe, rate in zip(together, (0.01, 0.1, 1.0), strict=True):
        (alone,) = fit((rate,))
        np.testing.assert_allclose(probe.kernel, alone.kernel, rtol=1e-4, atol=1e-5)
    assert together[0].accuracy(train) > 0.5


def test_the_best_l2_is_chosen_without_the_test():
    train, test = examples(30, dim=60, noise=3.0), examples(500, dim=60, noise=3.0, seed=1)
    scaled = (train[0] * np.geomspace(1e-2, 1e2, 60) + 5, train[1])
    of_test = (test[0] * np.geomspace(1e-2, 1e2, 60) + 5, test[1])
    l2s = (1e-6, 1e-2, 1e-1, 1.0)
    probe, l2 = logistic.fit_best(scaled, num_classes=4, l2=l2s)
    assert l2 in l2s
    standardise = logistic.standardiser(scaled[0])
    alone = logistic.fit_lbfgs((standardise(scaled[0]), scaled[1]), num_classes=4, l2=l2)
    np.testing.assert_allclose(
        probe.logits(of_test[0]), alone.logits(standardise(of_test[0])), atol=2e-3
    )
    least = logistic.fit_lbfgs((standardise(scaled[0]), scaled[1]), num_classes=4, l2=1e-6)
    assert probe.accuracy(of_test) > least.accuracy((standardise(of_test[0]), test[1]))


def test_the_best_learning_rate_is_chosen_without_the_test():
    train, test = examples(60, noise=2.0), examples(500, noise=2.0, seed=1)
    moved = lambda data: (data[0] * 100 + 5, data[1])
    rates = (1e-5, 0.1, 1e6)
    probe, rate = logistic.best_of_sgd(moved(train), num_classes=4, learning_rates=rates, epochs=20)
    assert rate == 0.1
    standardise = logistic.standardiser(moved(train)[0])
    (alone,) = logistic.fit_sgd(
        (standardise(moved(train)[0]), train[1]), num_classes=4, learning_rates=(0.1,), epochs=20,
        batch_size=logistic.BATCH_SIZE, seed=0,
    )  # fmt: skip
    np.testing.assert_allclose(
        probe.logits(moved(test)[0]), alone.logits(standardise(moved(test)[0])), atol=2e-3
    )


def test_a_diverged_probe_is_not_the_best():
    """NaN logits have their largest at class 0, which most examples belong to."""
    features, labels = examples(60, noise=2.0)
    train = features, np.where(labels < 3, 0, 1)
    _, rate = logistic.best_of_sgd(train, num_classes=2, learning_rates=(1e-9, 1e38), epochs=9)
    assert rate == 1e-9


def test_sgd_equals_torch():
    torch = pytest.importorskip("torch")
    features, labels = examples(20, noise=2.0)
    rates = (0.05, 0.5)
    ours = logistic.fit_sgd(
        (features, labels), num_classes=4, learning_rates=rates, epochs=2, batch_size=32, seed=3
    )
    numbers, layers = np.random.default_rng(3), [torch.nn.Linear(12, 4) for _ in rates]
    for layer in layers:
        torch.nn.init.zeros_(layer.weight), torch.nn.init.zeros_(layer.bias)
    orders = [numbers.permutation(80) for _ in range(2)]
    for layer, rate in zip(layers, rates, strict=True):
        optimizer = torch.optim.SGD(layer.parameters(), rate, momentum=logistic.MOMENTUM)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
        for rows in (order[start : start + 32] for order in orders for start in (0, 32)):
            x, y = torch.tensor(features[rows], dtype=torch.float32), torch.tensor(labels[rows])
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(layer(x), y).backward()
            optimizer.step()
            schedule.step()
    for probe, layer in zip(ours, layers, strict=True):
        np.testing.assert_allclose(probe.kernel, layer.weight.detach().T, atol=1e-5)
        np.testing.assert_allclose(probe.bias, layer.bias.detach(), atol=1e-5)
