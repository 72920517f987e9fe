import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from vit_jax.core.token_layout import TokenLayout
from vit_jax.nn.block import Block
from vit_jax.nn.block_spec import BlockSpec
from vit_jax.nn.initialization import VIT
from vit_jax.nn.posemb import LearnedPositions

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
    assert not hasattr(block, "norm2")
    x = jax.random.normal(jax.random.key(1), (2, 5, 16))
    normed = layer_norm(x)
    expected = x + block.attention(normed) + block.mlp(normed, None)
    np.testing.assert_allclose(block(x), expected, atol=ROUNDING)


def test_positions_are_added_before_the_first_norm():
    make = lambda rngs: LearnedPositions(
        TokenLayout((1, 5), False), 16, init=VIT.positions, rngs=rngs
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
