import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from vit_jax.nn.block_spec import BlockSpec
from vit_jax.nn.pooling import AttentionPooling

pytestmark = pytest.mark.usefixtures("quick_compilation")
ROUNDING = 1e-5  # float32 sums of some tens of terms, in another order
WIDTH, HEADS = 16, 2


@pytest.fixture(scope="module")
def pooling():
    # The MLP is a plain one, whatever that of the blocks.
    spec = BlockSpec(width=WIDTH, mlp_dim=32, num_heads=HEADS, gelu="exact", mlp="swiglu")
    return AttentionPooling(spec, rngs=nnx.Rngs(0))


def test_the_probe_attends_to_every_token_and_an_mlp_follows(pooling):
    tokens = np.asarray(jax.random.normal(jax.random.key(1), (2, 5, WIDTH)))
    size = WIDTH // HEADS
    probe, query = (np.asarray(x[...]) for x in (pooling.probe, pooling.query.kernel))
    key_value, out = (np.asarray(x.kernel[...]) for x in (pooling.key_value, pooling.out))
    for image in range(2):
        pooled = np.zeros(WIDTH)
        for head in range(HEADS):
            q = probe @ query[:, 0, head]
            keys, values = (tokens[image] @ key_value[:, i, head] for i in range(2))
            weights = np.exp(keys @ q / np.sqrt(size))
            pooled += weights / weights.sum() @ values @ out[head]
        normed = (pooled - pooled.mean()) / np.sqrt(pooled.var() + 1e-6)
        hidden = jax.nn.gelu(normed @ pooling.mlp.fc1.kernel[...], approximate=False)
        expected = pooled + hidden @ pooling.mlp.fc2.kernel[...]
        np.testing.assert_allclose(pooling(tokens)[image], expected, atol=ROUNDING)


def test_the_order_of_the_tokens_does_not_matter(pooling):
    tokens = jax.random.normal(jax.random.key(1), (1, 5, WIDTH))
    np.testing.assert_allclose(pooling(tokens), pooling(tokens[:, ::-1]), atol=ROUNDING)


def test_initialisation():
    width = 64
    spec = BlockSpec(width=width, mlp_dim=8, num_heads=4)
    pooling = AttentionPooling(spec, rngs=nnx.Rngs(0))
    limit = np.sqrt(6 / (width + width))
    for kernel in (pooling.query.kernel[...], pooling.key_value.kernel[...]):
        assert 0.98 * limit < float(jnp.abs(kernel).max()) <= limit
    # 64 uniform draws come within 20 % of their bound, never above it.
    probe_limit = np.sqrt(6 / (1 + width))
    assert 0.8 * probe_limit < float(jnp.abs(pooling.probe[...]).max()) <= probe_limit
