"""LeJEPA: its projector, what skipped images count, and what it refuses."""

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.learning.methods import lejepa

ROUNDING = 1e-5


def test_a_standard_normal_sample_is_near_and_a_collapsed_one_far():
    weight = jnp.ones(512)
    near = lejepa.epps_pulley(jax.random.normal(jax.random.key(0), (512, 4)), weight, 17, 3.0)
    far = lejepa.epps_pulley(jnp.zeros((512, 4)), weight, 17, 3.0)
    assert near.max() < 2 and far.min() > 100


def test_what_is_skipped_does_not_count():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, 2, 3)).astype(np.float32)
    weight = np.array([1, 1, 0, 1, 1, 0], np.float32)
    kept, ones = weight > 0, np.ones(4, np.float32)
    np.testing.assert_allclose(
        lejepa.epps_pulley(x, weight, 17, 3.0),
        lejepa.epps_pulley(x[kept], ones, 17, 3.0),
        rtol=ROUNDING,
    )
    scale, bias = np.full(3, 2, np.float32), np.ones(3, np.float32)
    normed = np.asarray(lejepa.batch_normed(x, weight, scale, bias))[kept]
    rows = x[kept].reshape(-1, 3)
    expected = (x[kept] - rows.mean(0)) / np.sqrt(rows.var(0) + lejepa.NORM_EPSILON) * 2 + 1
    np.testing.assert_allclose(normed, expected, atol=ROUNDING)
