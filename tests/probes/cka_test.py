import numpy as np
import pytest

from tests.messages import refused
from vit_jax.probes import cka

ROUNDING = 1e-5


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def unbiased_hsic(x, y):
    """Equation 3 of arXiv 2010.15327, literally."""
    n, one = len(x), np.ones(len(x))
    k, m = x @ x.T, y @ y.T
    k, m = k - np.diag(np.diag(k)), m - np.diag(np.diag(m))
    trace = np.trace(k @ m)
    sums = (one @ k @ one) * (one @ m @ one) / ((n - 1) * (n - 2))
    return (trace + sums - 2 / (n - 2) * (one @ k @ m @ one)) / (n * (n - 3))


def by_hand(x, y):
    return unbiased_hsic(x, y) / np.sqrt(unbiased_hsic(x, x) * unbiased_hsic(y, y))


def test_it_is_equations_3_and_4():
    layers = [drawn(60, 5), drawn(60, 4, 2, seed=1), drawn(60, 30, seed=2)]
    layers[2][:, :5] += layers[0]
    similarity = cka.linear_cka(layers)
    flat = [x.reshape(60, -1) for x in layers]
    np.testing.assert_allclose(
        similarity, [[by_hand(x, y) for y in flat] for x in flat], atol=ROUNDING
    )
    np.testing.assert_allclose(np.diag(similarity), 1)


def test_two_models_are_a_part_of_one():
    one, other = [drawn(20, 6), drawn(20, 9, seed=1)], [drawn(20, 7, seed=2)]
    both = cka.linear_cka([*one, *other])
    np.testing.assert_allclose(cka.linear_cka(one, other), both[:2, 2:])


def test_published_numbers():
    """The number that Demo.ipynb of the paper's authors prints.

    github.com/google-research/google-research, representation_similarity/Demo.ipynb.
    """
    legacy = np.random.RandomState(1337)
    x = legacy.randn(100, 10)
    y = legacy.randn(100, 10) + x
    assert cka.linear_cka([x], [y]).item() == pytest.approx(0.51346, abs=5e-6)


def test_neither_rotation_nor_scale_nor_offset_changes_it():
    x = drawn(40, 8)
    rotation = np.linalg.qr(drawn(8, 8, seed=2))[0]
    moved = 7 * x @ rotation + 1e4
    assert cka.linear_cka([x, moved])[0, 1] == pytest.approx(1, abs=1e-6)


def test_the_number_of_examples_does_not_bias_it():
    x = drawn(3000, 50)
    y = np.concatenate([x[:, :10], drawn(3000, 40, seed=1)], axis=1)
    estimates = [cka.linear_cka([x[i : i + 30]], [y[i : i + 30]]) for i in range(0, 3000, 30)]
    estimate = cka.linear_cka([x], [y]).item()
    assert np.mean(estimates) == pytest.approx(estimate, abs=0.02)


def test_what_cannot_be_compared():
    with refused():
        cka.linear_cka([drawn(3, 2)])
    similarity = cka.linear_cka([drawn(8, 2), np.full((8, 2), 0.1)])
    np.testing.assert_array_equal(np.isnan(similarity), [[False, True], [True, True]])
