import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from vit_jax.core.axes import Target
from vit_jax.models.layers import block as blocks
from vit_jax.models.layers import faster
from vit_jax.models.layers.block import Block, BlockSpec, Mlp, PositionedBlock
from vit_jax.models.layers.kernels.xla import attend
from vit_jax.models.layers.kernels.xla import scaled as scale_queries
from vit_jax.models.layers.logits import LogitTransform, add_bias

pytestmark = pytest.mark.usefixtures("quick_compilation")
ROUNDING = 1e-5  # float32, another order of sums


def make_block(positions=None, **fields):
    spec = BlockSpec(width=16, mlp_dim=32, num_heads=2, gelu="exact", **fields)
    if positions is None:
        return Block(spec, rngs=nnx.Rngs(0))
    return PositionedBlock(spec, positions=positions, rngs=nnx.Rngs(0))


@pytest.mark.parametrize(
    "fields",
    [{}, {"parallel": True, "mlp": "swiglu"}, {"attention_dropout": 0.5, "norm_stream": True}],
    ids=str,
)
def test_the_first_tokens_alone_are_those_of_all(fields):
    block, key = make_block(dropout=0.3, **fields), jax.random.key(0)
    x = jax.random.normal(jax.random.key(1), (2, 5, 16))
    for k, rate in ((None, None), (key, 0.4)):
        first = block.first_tokens(2, x, k, rate)
        np.testing.assert_allclose(first, block(x, k, rate)[:, :2], atol=ROUNDING)


def test_the_second_norm_may_be_of_the_stream(drawn):
    block = drawn(lambda: make_block(norm_stream=True))
    x = jax.random.normal(jax.random.key(1), (2, 5, 16))
    y = block.norm2(x + block.attention(block.norm1(x)))
    np.testing.assert_allclose(block(x), y + block.mlp(y, None), atol=ROUNDING)


def test_dropout_of_weights_keeps_their_mean_and_drops_whole_weights():
    spec = BlockSpec(width=16, mlp_dim=32, num_heads=2, attention_dropout=0.25)
    attention = blocks.make_attention(spec, rngs=nnx.Rngs(0))
    projected = attention.project(jax.random.normal(jax.random.key(1), (2, 5, 16)))
    # With one-hot values, [B, N, H, N], what is mixed are the weights.
    one_hot = jnp.broadcast_to(jnp.eye(5)[None, :, None], (2, 5, 2, 5))
    mixed = jax.vmap(lambda key: attention.mix(projected._replace(value=one_hot), key))(
        jax.random.split(jax.random.key(2), 4000)
    )
    weights = jnp.swapaxes(attention.weights(projected), 1, 2)
    ratios = np.asarray(mixed / weights)
    assert np.all((ratios == 0) | np.isclose(ratios, 1 / 0.75, rtol=1e-4))
    dropped = (ratios == 0).mean(0)  # four standard deviations of 4,000 draws
    np.testing.assert_allclose(dropped, 0.25, atol=4 * (0.25 * 0.75 / 4000) ** 0.5 + 2e-3)


@pytest.mark.parametrize("field", ["dropout", "attention_dropout"])
def test_dropout_acts_only_with_a_key(field):
    block, x = make_block(**{field: 0.5}), jax.random.normal(jax.random.key(2), (2, 5, 16))
    np.testing.assert_array_equal(block(x), make_block()(x))
    key = jax.random.key(0)
    assert not np.array_equal(block(x, key), block(x))
    np.testing.assert_array_equal(block(x, key), block(x, key))


def test_each_draw_of_a_block_has_its_own_key(drawn, monkeypatch):
    block, used = drawn(lambda: make_block(dropout=0.5)), []
    record = lambda x, key: used.append(key) or x
    monkeypatch.setattr(blocks.Dropout, "__call__", lambda self, x, key, tokens: record(x, key))
    monkeypatch.setattr(blocks, "drop_branch", lambda y, rate, key: record(y, key))
    monkeypatch.setattr(jax.random, "split", lambda key, number: list(range(number)))
    jax.eval_shape(lambda x: block(x, jax.random.key(0), 0.5), jnp.ones((2, 5, 16)))
    assert sorted(used) == [0, 1, 2, 3, 4]


def test_on_gpus_the_activations_input_alone_is_kept(monkeypatch):
    """And the gradients are the same. Where GELU is as ever, JAX keeps a second array as large."""
    mlp = Mlp(BlockSpec(width=8, mlp_dim=32, num_heads=2), rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(0), (2, 3, 8))

    def results():
        y, back = jax.vjp(lambda x: mlp(x, None), x)
        hidden = [kept for kept in jax.tree.leaves(back) if kept.shape[-1:] == (32,)]
        return y, back(jnp.cos(y))[0], len([kept for kept in hidden if kept.ndim == 3])

    *expected, usual = results()
    monkeypatch.setattr(faster, "target", lambda: Target("gpu", "NVIDIA H200"))
    *given, on_gpu = results()
    for a, b in zip(given, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)
    assert on_gpu == 2 < usual  # with what fc2 multiplies


@pytest.mark.parametrize(
    ("softmax_dtype", "written"), [(jnp.float32, "f32"), (jnp.bfloat16, "bf16")]
)
def test_softmax_has_its_own_dtype(softmax_dtype, written):
    x = jax.ShapeDtypeStruct((1, 5, 2, 8), jnp.bfloat16)
    own = functools.partial(attend, softmax_dtype=softmax_dtype)
    text = jax.jit(own).lower(x, x, x).as_text()
    assert re.findall(r"exponential .*tensor<1x2x5x5x(\w+)>", text) == [written]
    assert jax.eval_shape(own, x, x, x).dtype == jnp.bfloat16


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_bias_is_added_to_the_logits_and_has_a_gradient(dtype):
    arguments = jax.random.normal(jax.random.key(0), (3, 2, 5, 3, 8), jnp.float32)
    bias = jax.random.normal(jax.random.key(1), (2, 3, 5, 5)).astype(dtype)
    dy = jax.random.normal(jax.random.key(2), (2, 5, 3, 8))

    def plain(query, key, value, bias):
        logits = jnp.einsum("bqhk,bshk->bhqs", query, key) / np.sqrt(8) + bias
        return jnp.einsum("bhqs,bshk->bqhk", jax.nn.softmax(logits), value)

    def own(*qkv_and_bias):
        transform = LogitTransform("bias", add_bias, qkv_and_bias[3])
        return attend(*qkv_and_bias[:3], jnp.float32, (transform,))

    expected, expected_back = jax.vjp(plain, *arguments, bias)
    actual, back = jax.vjp(own, *arguments, bias)
    np.testing.assert_allclose(actual, expected, atol=ROUNDING)
    for a, b in zip(back(dy), expected_back(dy), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(
            np.asarray(a, np.float32), np.asarray(b, np.float32), atol=ROUNDING
        )


def test_bfloat16_does_not_round_the_scale_of_the_logits():
    """The root of 80, the head size of ViT-H, has no exact bfloat16; queries round either way."""
    query = (1 + jax.random.uniform(jax.random.key(0), (1, 50, 4, 80))).astype(jnp.bfloat16)
    scaled = (
        np.asarray(scale_queries(query), np.float64).sum() / np.asarray(query, np.float64).sum()
    )
    assert scaled * np.sqrt(80) == pytest.approx(1, abs=3e-4)
