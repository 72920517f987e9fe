import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from vit_jax.core.axes import Target
from vit_jax.core.token_layout import TokenLayout
from vit_jax.models.layers import block as blocks
from vit_jax.models.layers import linear
from vit_jax.models.layers.block import Block, BlockSpec, Mlp, SelfAttention
from vit_jax.models.layers.initialization import MAKERS
from vit_jax.models.layers.kernels.xla import attend
from vit_jax.models.layers.kernels.xla import scaled as scale_queries
from vit_jax.models.layers.posemb import LearnedPositions

pytestmark = pytest.mark.usefixtures("quick_compilation")
ROUNDING = 1e-5  # float32, another order of sums


def make_block(positions=None, **fields):
    spec = BlockSpec(width=16, mlp_dim=32, num_heads=2, gelu="exact", **fields)
    return Block(spec, positions=positions, rngs=nnx.Rngs(0))


def layer_norm(x):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)


def test_equals_the_papers_equations():
    block = make_block()
    x = jax.random.normal(jax.random.key(1), (2, 5, 16))
    y = x + block.attention(layer_norm(x))
    fc1, fc2 = block.mlp.fc1, block.mlp.fc2
    hidden = jax.nn.gelu(layer_norm(y) @ fc1.kernel[...] + fc1.bias[...], approximate=False)
    expected = y + hidden @ fc2.kernel[...] + fc2.bias[...]
    np.testing.assert_allclose(block(x), expected, atol=ROUNDING)


def test_layer_scale_multiplies_each_branch_by_channel():
    block, plain = make_block(layer_scale=0.5), make_block()
    x = jax.random.normal(jax.random.key(1), (2, 5, 16))
    y = x + 0.5 * plain.attention(plain.norm1(x))
    expected = y + 0.5 * plain.mlp(plain.norm2(y), None)
    np.testing.assert_allclose(block(x), expected, atol=ROUNDING)
    block.scale1.scale[...] = jnp.zeros(16)
    block.scale2.scale[...] = jnp.zeros(16).at[3].set(1)
    changed = np.asarray(block(x) != x)
    assert changed[..., 3].all()
    assert changed.sum() == changed[..., 3].size


def test_parallel_branches_see_the_same_input():
    block = make_block(parallel=True)
    assert block.norm2 is None
    x = jax.random.normal(jax.random.key(1), (2, 5, 16))
    normed = layer_norm(x)
    expected = x + block.attention(normed) + block.mlp(normed, None)
    np.testing.assert_allclose(block(x), expected, atol=ROUNDING)


def test_positions_are_added_before_the_first_norm():
    make = lambda rngs: LearnedPositions(
        TokenLayout((1, 5), False), 16, init=MAKERS["vit"](16).positions, rngs=rngs
    )
    block, plain = make_block(positions=make), make_block()
    x = jax.random.normal(jax.random.key(1), (2, 5, 16))
    expected = plain(x + block.positions.embedding[...])
    np.testing.assert_allclose(block(x), expected, atol=ROUNDING)
    np.testing.assert_allclose(plain(x, positions=block.positions), expected, atol=ROUNDING)


def test_dropout_acts_only_with_a_key():
    block, x = make_block(dropout=0.5), jnp.ones((2, 5, 16))
    np.testing.assert_array_equal(block(x), make_block()(x))
    key = jax.random.key(0)
    assert not np.array_equal(block(x, key), block(x))
    np.testing.assert_array_equal(block(x, key), block(x, key))


def test_each_draw_of_a_block_has_its_own_key(drawn, monkeypatch):
    block, used = drawn(lambda: make_block(dropout=0.5)), []
    record = lambda x, key: used.append(key) or x
    monkeypatch.setattr(blocks.Dropout, "__call__", lambda self, x, key, _=None: record(x, key))
    monkeypatch.setattr(blocks, "drop_branch", lambda y, rate, key: record(y, key))
    monkeypatch.setattr(jax.random, "split", lambda key, number: list(range(number)))
    jax.eval_shape(lambda x: block(x, jax.random.key(0), 0.5), jnp.ones((2, 5, 16)))
    assert sorted(used) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", ["swiglu", "geglu"])
def test_gated_mlp_equals_its_formula(kind, bias):
    spec = BlockSpec(width=8, mlp_dim=12, num_heads=1, gelu="exact", mlp=kind, dense_bias=bias)
    mlp = Mlp(spec, rngs=nnx.Rngs(0))
    assert (mlp.fc1.bias is not None) == (mlp.gate.bias is not None) == bias
    x = np.asarray(jax.random.normal(jax.random.key(1), (2, 5, 8)))
    dense = lambda layer, x: x @ np.asarray(layer.kernel) + (np.asarray(layer.bias) if bias else 0)
    gate = dense(mlp.gate, x)
    if kind == "swiglu":
        gate = gate / (1 + np.exp(-gate))
    else:
        gate = np.asarray(jax.nn.gelu(gate, approximate=False))
    expected = dense(mlp.fc2, gate * dense(mlp.fc1, x))
    np.testing.assert_allclose(mlp(x, None), expected, atol=ROUNDING)


def make_attention(**fields):
    return SelfAttention(BlockSpec(mlp_dim=1, **fields), rngs=nnx.Rngs(0))


def test_on_gpus_the_activations_input_alone_is_kept(monkeypatch):
    """And the gradients are the same. Where GELU is as ever, JAX keeps a second array as large."""
    mlp = Mlp(BlockSpec(width=8, mlp_dim=32, num_heads=2), rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(0), (2, 3, 8))

    def results():
        y, back = jax.vjp(lambda x: mlp(x, None), x)
        hidden = [kept for kept in jax.tree.leaves(back) if kept.shape[-1:] == (32,)]
        return y, back(jnp.cos(y))[0], len([kept for kept in hidden if kept.ndim == 3])

    *expected, usual = results()
    monkeypatch.setattr(linear, "target", lambda: Target("gpu", "NVIDIA H200"))
    *given, on_gpu = results()
    for a, b in zip(given, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)
    assert on_gpu == 2 < usual  # with what fc2 multiplies


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
    scaled = (
        np.asarray(scale_queries(query), np.float64).sum() / np.asarray(query, np.float64).sum()
    )
    assert scaled * np.sqrt(80) == pytest.approx(1, abs=3e-4)
