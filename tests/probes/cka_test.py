import numpy as np
import pytest

from vit_jax.probes import cka


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


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
    moved = (7 * x @ rotation + 1e4).reshape(40, 4, 2)
    assert cka.linear_cka([x, moved])[0, 1] == pytest.approx(1, abs=1e-6)


def test_the_number_of_examples_does_not_bias_it():
    x = drawn(3000, 50)
    y = np.concatenate([x[:, :10], drawn(3000, 40, seed=1)], axis=1)
    estimates = [cka.linear_cka([x[i : i + 30]], [y[i : i + 30]]) for i in range(0, 3000, 30)]
    estimate = cka.linear_cka([x], [y]).item()
    assert np.mean(estimates) == pytest.approx(estimate, abs=0.02)
