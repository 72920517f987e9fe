import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from vit_jax.nn.block import Block, drop_branch
from vit_jax.nn.posemb import LearnedPositions, TokenLayout
from vit_jax.nn.precision import FLOAT32

ROUNDING = 1e-5  # float32, another order of sums


def make_block(dropout=0.0, layer_scale=0.0, **fields):
    return Block(
        width=16, mlp_dim=32, num_heads=2, gelu="exact", dropout=dropout, layer_scale=layer_scale,
        precision=FLOAT32, rngs=nnx.Rngs(0), **fields,
    )  # fmt: skip


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


def test_parallel_branches_see_the_same():
    block = make_block(parallel=True)
    assert not hasattr(block, "norm2")
    x = jax.random.normal(jax.random.key(1), (2, 5, 16))
    normed = layer_norm(x)
    expected = x + block.attention(normed) + block.mlp(normed, None)
    np.testing.assert_allclose(block(x), expected, atol=ROUNDING)


def test_positions_are_added_before_the_first_norm():
    make = lambda rngs: LearnedPositions(TokenLayout((1, 5), False), 16, rngs=rngs)
    block, plain = make_block(positions=make), make_block()
    x = jax.random.normal(jax.random.key(1), (2, 5, 16))
    expected = plain(x + block.positions.embedding[...])
    np.testing.assert_allclose(block(x), expected, atol=ROUNDING)
    np.testing.assert_allclose(plain(x, positions=block.positions), expected, atol=ROUNDING)


def test_dropout_acts_with_a_key_alone():
    block, x = make_block(dropout=0.5), jnp.ones((2, 5, 16))
    np.testing.assert_array_equal(block(x), make_block()(x))
    key = jax.random.key(0)
    assert not np.array_equal(block(x, key), block(x))
    np.testing.assert_array_equal(block(x, key), block(x, key))


def test_dropped_branches_are_whole_and_the_mean_stays():
    y = jnp.ones((4000, 3, 2))
    dropped = drop_branch(y, jnp.float32(0.25), jax.random.key(0))
    per_example = dropped.reshape(4000, -1)
    assert (per_example == per_example[:, :1]).all()
    np.testing.assert_allclose(np.unique(per_example), [0, 1 / 0.75], rtol=1e-6)
    assert abs(float(dropped.mean()) - 1) < 0.03  # one sigma of 4,000 draws: 0.009


def test_evaluation_drops_nothing():
    y = jnp.ones((8, 3, 2))
    assert drop_branch(y, jnp.float32(0.9), None) is y


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.45])
def test_stochastic_depth_keeps_the_mean_in_bfloat16(rate):
    y = (1 + jax.random.uniform(jax.random.key(0), (60, 20, 30))).astype(jnp.bfloat16)
    dropped = np.asarray(drop_branch(y, jnp.float32(rate), jax.random.key(1)), np.float64)
    of = np.asarray(y, np.float64)[dropped != 0].sum()
    # Values round either way; a rounded factor is off by up to 2e-3.
    assert dropped.sum() / of * (1 - rate) == pytest.approx(1, abs=3e-4)


@pytest.mark.parametrize("rate", [1 - 2.0**-18, np.nextafter(1, 0)])
def test_gradients_are_finite_where_nearly_every_branch_is_dropped(rate):
    drop = lambda y: drop_branch(y, jnp.float32(rate), jax.random.key(1)).sum()
    assert np.isfinite(jax.grad(drop)(jnp.ones((50, 4)))).all()
