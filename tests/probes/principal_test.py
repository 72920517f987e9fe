import numpy as np
import pytest

from vit_jax.probes.principal import principal

ROUNDING = 1e-5


def by_hand(x, number):
    """(variance along each component, components up to their signs), one after the other."""
    x = x - x.mean(axis=0)
    variances, found = [], []
    for _ in range(number):
        direction = np.ones(x.shape[1])
        for _ in range(3000):  # the power method
            direction = x.T @ (x @ direction)
            direction /= np.linalg.norm(direction)
        variances.append(np.sum((x @ direction) ** 2))
        found.append(direction)
        x = x - np.outer(x @ direction, direction)
    return np.array(variances), np.array(found)


@pytest.mark.parametrize("shape", [(12, 20), (300, 5)], ids=["wide", "tall"])
def test_equals_the_power_method(shape):
    x = np.random.default_rng(0).normal(size=shape) * np.arange(1, shape[1] + 1) + 3
    found = principal(x, 4)
    variances, directions = by_hand(x, 4)
    signs = np.sign(np.sum(found.directions * directions, axis=1, keepdims=True))
    np.testing.assert_allclose(found.directions, signs * directions, atol=ROUNDING)
    total = np.sum((x - x.mean(axis=0)) ** 2)
    np.testing.assert_allclose(found.explained, variances / total, rtol=ROUNDING)
    np.testing.assert_allclose(found.coordinates(x), (x - x.mean(axis=0)) @ found.directions.T)
    assert (found.directions.max(axis=1) >= -found.directions.min(axis=1)).all()


def test_no_more_components_than_there_are():
    x = np.random.default_rng(0).normal(size=(5, 9))
    found = principal(x, 28)
    assert found.directions.shape == (4, 9)
    assert found.explained.sum() == pytest.approx(1)
    assert principal(np.ones((3, 2)), 2).explained.tolist() == [0, 0]
    assert principal(np.ones((1, 2)), 2).directions.shape == (0, 2)
