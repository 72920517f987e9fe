import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from vit_jax.nn.attention import SelfAttention, _scaled, attend
from vit_jax.nn.block_spec import BlockSpec

pytestmark = pytest.mark.usefixtures("quick_compilation")
ROUNDING = 1e-5  # float32 sums of some tens of terms, in another order


def make_attention(**fields):
    return SelfAttention(BlockSpec(mlp_dim=1, **fields), rngs=nnx.Rngs(0))


def test_attend_is_softmax_of_scaled_products():
    b, n, h, k = 2, 5, 3, 4
    query, key, value = np.random.default_rng(0).normal(size=(3, b, n, h, k)).astype(np.float32)
    expected = np.empty((b, n, h, k))
    for i in range(b):
        for j in range(h):
            logits = query[i, :, j] @ key[i, :, j].T / np.sqrt(k)
            weights = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
            expected[i, :, j] = weights @ value[i, :, j]
    np.testing.assert_allclose(attend(query, key, value, jnp.float32), expected, atol=ROUNDING)


@pytest.mark.parametrize(
    ("softmax_dtype", "written"), [(jnp.float32, "f32"), (jnp.bfloat16, "bf16")]
)
def test_softmax_has_its_own_dtype(softmax_dtype, written):
    x = jax.ShapeDtypeStruct((1, 5, 2, 8), jnp.bfloat16)
    own = functools.partial(attend, softmax_dtype=softmax_dtype)
    text = jax.jit(own).lower(x, x, x).as_text()
    assert re.findall(r"exponential .*tensor<1x2x5x5x(\w+)>", text) == [written]
    assert jax.eval_shape(own, x, x, x).dtype == jnp.bfloat16


@pytest.mark.parametrize(("dtype", "rounding"), [(jnp.float32, ROUNDING), (jnp.bfloat16, 2**-6)])
def test_gradients_equal_those_of_jax(dtype, rounding):
    """rounding: for bfloat16, that of sums of products of order one, computed in different ways."""
    arguments = jax.random.normal(jax.random.key(0), (3, 2, 7, 3, 8), dtype)
    dy = jax.random.normal(jax.random.key(1), (2, 7, 3, 8), dtype)

    def plain(query, key, value):
        logits = jnp.einsum("bqhk,bshk->bhqs", query, key, preferred_element_type=jnp.float32)
        weights = jax.nn.softmax(logits / np.sqrt(8)).astype(dtype)
        return jnp.einsum("bhqs,bshk->bqhk", weights, value)

    expected = jax.vjp(plain, *arguments)[1](dy)
    own = lambda query, key, value: attend(query, key, value, jnp.float32)
    for a, b in zip(jax.vjp(own, *arguments)[1](dy), expected, strict=True):
        assert a.dtype == dtype
        scale = float(jnp.abs(b).max())
        np.testing.assert_allclose(
            np.asarray(a, np.float32), np.asarray(b, np.float32), atol=rounding * scale
        )


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_bias_is_added_to_the_logits_and_has_a_gradient(dtype):
    arguments = jax.random.normal(jax.random.key(0), (3, 2, 5, 3, 8), jnp.float32)
    bias = jax.random.normal(jax.random.key(1), (2, 3, 5, 5)).astype(dtype)
    dy = jax.random.normal(jax.random.key(2), (2, 5, 3, 8))

    def plain(query, key, value, bias):
        logits = jnp.einsum("bqhk,bshk->bhqs", query, key) / np.sqrt(8) + bias
        return jnp.einsum("bhqs,bshk->bqhk", jax.nn.softmax(logits), value)

    own = lambda query, key, value, bias: attend(query, key, value, jnp.float32, bias)
    expected, expected_back = jax.vjp(plain, *arguments, bias)
    actual, back = jax.vjp(own, *arguments, bias)
    np.testing.assert_allclose(actual, expected, atol=ROUNDING)
    for a, b in zip(back(dy), expected_back(dy), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(
            np.asarray(a, np.float32), np.asarray(b, np.float32), atol=ROUNDING
        )


def test_query_and_key_may_have_norms_and_the_key_no_bias():
    attention = make_attention(width=16, num_heads=2, qkv_bias="query_value", qk_norm=True)
    assert attention.qkv.bias is None
    attention.query_bias[...] = jnp.arange(16.0).reshape(2, 8)
    attention.value_bias[...] = jnp.arange(16.0).reshape(2, 8) / 3
    attention.key_norm.scale[...] = jnp.arange(8.0)
    x = jax.random.normal(jax.random.key(1), (2, 5, 16))
    query, key, value = jnp.einsum("bnd,dihk->ibnhk", x, attention.qkv.kernel[...])

    def layer_norm(x):
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)

    query = layer_norm(query + attention.query_bias[...])
    key = layer_norm(key) * jnp.arange(8.0)
    logits = jnp.einsum("bqhk,bshk->bhqs", query, key) / np.sqrt(8)
    value = value + attention.value_bias[...]
    mixed = jnp.einsum("bhqs,bshk->bqhk", jax.nn.softmax(logits), value)
    expected = jnp.einsum("bqhk,hkd->bqd", mixed, attention.out.kernel[...])
    np.testing.assert_allclose(attention(x), expected, atol=10 * ROUNDING)  # logits of about 30


def test_each_projection_is_initialised_as_xavier():
    width = 64
    attention = make_attention(width=width, num_heads=4)
    limit = np.sqrt(6 / (width + width))
    for kernel in (attention.qkv.kernel[...], attention.out.kernel[...]):
        # 4096 uniform draws or more come within 2 % of their bound, never above it.
        assert 0.98 * limit < float(jnp.abs(kernel).max()) <= limit
        assert abs(float(kernel.std()) - limit / np.sqrt(3)) < 0.02 * limit
    assert not attention.qkv.bias[...].any()


def test_bfloat16_does_not_round_the_scale_of_the_logits():
    """The root of 80, the head size of ViT-H, has no exact bfloat16; queries round either way."""
    query = (1 + jax.random.uniform(jax.random.key(0), (1, 50, 4, 80))).astype(jnp.bfloat16)
    scaled = np.asarray(_scaled(query), np.float64).sum() / np.asarray(query, np.float64).sum()
    assert scaled * np.sqrt(80) == pytest.approx(1, abs=3e-4)
