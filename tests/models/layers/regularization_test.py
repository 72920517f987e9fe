"""Dropout and stochastic depth: how many values are dropped, which, and the scaling."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.models.layers.regularization import Dropout, drop_branch

KEY = jax.random.key(0)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("tokens", [8, 5, 1])
def test_drops_the_expected_share_and_scales_the_rest(rate: float, tokens: int) -> None:
    x = jnp.ones([400, tokens, 60])
    y = np.asarray(Dropout(rate)(x, KEY))
    # Five standard deviations of a binomial proportion.
    tolerance = 5 * (rate * (1 - rate) / y.size) ** 0.5
    np.testing.assert_allclose(np.mean(y == 0), rate, atol=tolerance)
    np.testing.assert_allclose(y[y != 0], 1 / (1 - rate), rtol=1e-4)  # 2**-16 of a rate of 0.9


def test_values_are_dropped_independently() -> None:
    """Including those that share a word of random bits: tokens i and i + N/2."""
    dropped = np.asarray(Dropout(0.5)(jnp.ones([2000, 4, 16]), KEY)).transpose(1, 0, 2) == 0
    correlations = np.corrcoef(dropped.reshape(4, -1))
    np.testing.assert_allclose(correlations, np.eye(4), atol=5 / 32_000**0.5)


# Single values round to 8 bits up or down, so the mean of 30,000 is off by far less than this; a
# rounded factor would be off by up to 2e-3.
BIAS = 3e-4
DROPS = {
    "values": lambda x, rate: Dropout(rate)(x, KEY),
    "branches": lambda x, rate: drop_branch(x, jnp.float32(rate), KEY),
}


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.45])
@pytest.mark.parametrize("drop", DROPS)
def test_the_mean_is_kept_in_bfloat16(drop, rate):
    x = (1 + jax.random.uniform(jax.random.key(1), [100, 20, 30])).astype(jnp.bfloat16)
    y, pull = jax.vjp(lambda x: DROPS[drop](x, rate), x)
    (gradient,) = pull(x)
    for scaled in (np.asarray(y, np.float64), np.asarray(gradient, np.float64)):
        of = np.asarray(x, np.float64)[scaled != 0].sum()
        assert scaled.sum() / of * (1 - rate) == pytest.approx(1, abs=BIAS)


@pytest.mark.parametrize("rate", [1 - 2.0**-16, 1 - 2.0**-18, np.nextafter(1, 0)])
@pytest.mark.parametrize("drop", DROPS)
def test_gradients_are_finite_at_extreme_rates(drop, rate):
    y, gradient = jax.value_and_grad(lambda x: DROPS[drop](x, rate).sum())(jnp.ones([50, 20, 30]))
    assert np.isfinite(y) and np.isfinite(gradient).all()


def test_dropped_branches_are_whole_and_the_mean_stays():
    y = jnp.ones((4000, 3, 2))
    dropped = drop_branch(y, jnp.float32(0.25), jax.random.key(0))
    per_example = dropped.reshape(4000, -1)
    assert (per_example == per_example[:, :1]).all()
    np.testing.assert_allclose(np.unique(per_example), [0, 1 / 0.75], rtol=1e-6)
    assert abs(float(dropped.mean()) - 1) < 0.03  # one sigma of 4,000 draws: 0.009


def test_evaluation_drops_nothing():
    y = jnp.ones((8, 3, 2))
    assert drop_branch(y, jnp.float32(0.9), None) is y
