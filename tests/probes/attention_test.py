"""Numbers from weights of attention; tests/models/observe has those of models by formulas."""

import math

import numpy as np

from vit_jax.probes import attention


def test_who_looks_only_at_itself_has_distance_0_and_who_looks_evenly_the_mean():
    apart = attention.patch_distances((2, 2), (4, 4))
    even = (0 + 4 + 4 + math.hypot(4, 4)) / 4
    both = np.stack([np.eye(4), np.full((4, 4), 0.25)])
    np.testing.assert_allclose(attention.mean_distance(both, apart), [0, even])
    assert attention.mean_distance(np.zeros((4, 4)), apart) == 0  # all of it to other tokens


def test_outliers_are_far_above_the_median():
    norms = np.array([[40.0, 50.0, 60.0], [50.0, 149.0, 500.0]])
    np.testing.assert_array_equal(attention.outliers(norms), norms > 150)
