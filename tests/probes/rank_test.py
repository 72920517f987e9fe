import numpy as np
import pytest

from vit_jax.probes.rank import rank_me


@pytest.mark.parametrize("rank", [1, 3, 20])
def test_equal_singular_values_count(rank):
    left, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(100, 20)))
    matrix = left * (np.arange(20) < rank)
    assert rank_me(matrix) == pytest.approx(rank, rel=1e-4)


def test_two_values_by_hand():
    p = np.array([0.75, 0.25]) + 1e-7
    assert rank_me(np.diag([3.0, 1.0])) == pytest.approx(np.exp(-(p * np.log(p)).sum()), rel=1e-12)


def test_features_that_vanish_have_the_least_rank():
    assert rank_me(np.zeros((10, 4))) == pytest.approx(1, abs=1e-4)
