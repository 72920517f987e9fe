import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.mixup import mixup

ROUNDING = 1e-6  # a product and a sum in float32


def batch(size):
    key = jax.random.key(0)
    images = jax.random.uniform(key, (size, 2, 2, 3))
    return images, jax.nn.one_hot(jnp.arange(size), size), jnp.ones(size)


def test_every_pair_is_blended_with_one_ratio():
    images, targets, weight = batch(4)
    mixed, mixed_targets, mixed_weight = mixup(
        images, targets, weight, alpha=0.2, key=jax.random.key(1)
    )
    ratio = mixed_targets[0, 0]
    assert 0.5 <= ratio <= 1.0
    for i in range(4):
        after = (i + 1) % 4
        expected = ratio * images[i] + (1 - ratio) * images[after]
        np.testing.assert_allclose(mixed[i], expected, atol=ROUNDING)
        expected = ratio * targets[i] + (1 - ratio) * targets[after]
        np.testing.assert_allclose(mixed_targets[i], expected, atol=ROUNDING)
    np.testing.assert_array_equal(mixed_weight, weight)


def test_a_pair_with_a_skipped_example_is_skipped():
    images, targets, _ = batch(4)
    weight = jnp.array([1.0, 0.0, 1.0, 1.0])
    *_, mixed_weight = mixup(images, targets, weight, alpha=0.2, key=jax.random.key(1))
    np.testing.assert_array_equal(mixed_weight, [0, 0, 1, 1])


def test_alpha_zero_returns_the_arguments():
    arguments = batch(4)
    returned = mixup(*arguments, alpha=0.0, key=None)
    assert all(a is b for a, b in zip(arguments, returned, strict=True))


def test_ratios_follow_the_folded_beta_distribution():
    """Beta(1, 1) is uniform: folded at a half its mean is 3/4."""
    keys = jax.random.split(jax.random.key(2), 2000)
    ratios = jax.vmap(lambda k: mixup(*batch(2), alpha=1.0, key=k)[1][0, 0])(keys)
    assert float(ratios.mean()) == pytest.approx(0.75, abs=0.02)  # 6 standard errors


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_keeps_dtypes(dtype):
    images, targets, weight = batch(2)
    mixed, mixed_targets, _ = jax.jit(mixup, static_argnames="alpha")(
        images.astype(dtype), targets, weight, alpha=0.2, key=jax.random.key(1)
    )
    assert mixed.dtype == dtype and mixed_targets.dtype == jnp.float32
