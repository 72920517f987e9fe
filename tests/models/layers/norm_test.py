from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from vit_jax.core.axes import WIDTH
from vit_jax.models.layers.linear import FLOAT32, Precision
from vit_jax.models.layers.norm import NORMS, GroupNorm, norm

pytestmark = pytest.mark.usefixtures("quick_compilation")
ROUNDING = 1e-5  # float32 of numbers of about 1
EPS = 1e-5  # for group norms


@pytest.mark.parametrize("kind", NORMS)
def test_norms_equal_their_formulas(kind):
    layer = norm(kind, 8, "width", epsilon=0.1, precision=FLOAT32, rngs=nnx.Rngs(0))
    assert (getattr(layer, "bias", None) is not None) == (kind == "layer")
    assert layer.scale.get_metadata()["axes"] == ("width",)
    layer.scale[...] = jnp.arange(8.0)
    x = np.asarray(jax.random.normal(jax.random.key(0), (3, 8))) + 1
    centred = x - (0 if kind == "rms" else x.mean(-1, keepdims=True))
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 0.1) * np.arange(8)
    np.testing.assert_allclose(layer(x), expected, atol=ROUNDING)


def group_norm(precision=FLOAT32):
    spec = SimpleNamespace(group_norm_epsilon=EPS, precision=precision)
    return GroupNorm(64, WIDTH, spec, nnx.Rngs(0))


def test_each_pair_of_64_channels_is_a_group():
    x = np.random.default_rng(0).normal(3, 2, (2, 4, 5, 64))
    layer = group_norm()
    layer.scale[...] = jnp.arange(64.0)
    layer.bias[...] = jnp.ones(64)
    groups = x.reshape(2, 20, 32, 2)
    mean, variance = groups.mean((1, 3), keepdims=True), groups.var((1, 3), keepdims=True)
    expected = ((groups - mean) / np.sqrt(variance + EPS)).reshape(x.shape) * np.arange(64) + 1
    np.testing.assert_allclose(layer(jnp.asarray(x)), expected, atol=64 * ROUNDING)


def test_a_large_mean_costs_no_precision():
    x = 1000 + jax.random.normal(jax.random.key(0), (1, 8, 8, 64))
    assert abs(float(group_norm()(x).std()) - 1) < 1e-3


def test_statistics_are_float32_but_the_result_is_not():
    half = Precision(compute=jnp.bfloat16, softmax=jnp.float32, gradient=None)
    x = jax.random.normal(jax.random.key(0), (1, 64, 64, 64)).astype(jnp.bfloat16)
    y = group_norm(half)(x)
    assert y.dtype == jnp.bfloat16
    np.testing.assert_array_equal(y, group_norm()(x).astype(jnp.bfloat16))
