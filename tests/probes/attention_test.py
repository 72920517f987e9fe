"""Numbers from weights of attention; tests/models/observe has those of models by formulas."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.probes import attention

LIBRARIES = pytest.mark.parametrize("library", [np, jnp], ids=["numpy", "jax"])
ROUNDING = 1e-5


def drawn_weights(*shape):
    x = np.exp(np.random.default_rng(0).normal(size=shape)).astype(np.float32)
    return x / x.sum(axis=-1, keepdims=True)


@LIBRARIES
def test_mean_distance_in_pixels(library):
    grid, pixels = (3, 4), (8.0, 16.0)
    weights = drawn_weights(2, 12, 12) * 0.7  # the rest goes to a class token
    places = [(8 * (i // 4), 16 * (i % 4)) for i in range(12)]
    apart = np.array([[math.dist(a, b) for a in places] for b in places])
    np.testing.assert_allclose(attention.patch_distances(grid, pixels), apart)
    expected = [
        np.mean([np.average(d, weights=w) for d, w in zip(apart, h, strict=True)]) for h in weights
    ]
    found = attention.mean_distance(library.asarray(weights), library.asarray(apart))
    np.testing.assert_allclose(found, expected, rtol=ROUNDING)


def test_who_looks_only_at_itself_has_distance_0_and_who_looks_evenly_the_mean():
    apart = attention.patch_distances((2, 2), (4, 4))
    even = (0 + 4 + 4 + math.hypot(4, 4)) / 4
    both = np.stack([np.eye(4), np.full((4, 4), 0.25)])
    np.testing.assert_allclose(attention.mean_distance(both, apart), [0, even])
    assert attention.mean_distance(np.zeros((4, 4)), apart) == 0  # all of it to other tokens


def test_outliers_are_far_above_the_median():
    norms = np.array([[40.0, 50.0, 60.0], [50.0, 149.0, 500.0]])
    np.testing.assert_array_equal(attention.outliers(norms), norms > 150)
