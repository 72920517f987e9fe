import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from vit_jax.models.layers.block import BlockSpec
from vit_jax.models.layers.initialization import MAKERS
from vit_jax.models.layers.linear import FLOAT32
from vit_jax.models.layers.tokens import AttentionPooling, PatchEmbedding

INIT = MAKERS["vit"](8)
ROUNDING = 1e-5  # float32 sums of 48 terms in another order


@pytest.mark.parametrize(("size", "crop"), [((8, 12), False), ((8, 12), True), ((11, 13), True)])
def test_equals_a_strided_convolution(size, crop):
    patches = PatchEmbedding(4, 8, crop=crop, init=INIT, precision=FLOAT32, rngs=nnx.Rngs(0))
    images = jax.random.normal(jax.random.key(1), (2, *size, 3))
    expected = jax.lax.conv_general_dilated(
        images,
        patches.kernel[...],
        window_strides=(4, 4),
        padding="VALID",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        precision="highest",
    )
    np.testing.assert_allclose(patches(images), expected.reshape(2, 6, 8), atol=ROUNDING)


def test_images_of_another_size_are_not_cropped_unasked():
    patches = PatchEmbedding(4, 8, init=INIT, precision=FLOAT32, rngs=nnx.Rngs(0))
    with pytest.raises(TypeError, match=re.escape("(2, 11, 13, 3)")):
        patches(jax.numpy.zeros((2, 11, 13, 3)))


def test_kernel_is_lecun_normal():
    kernel = PatchEmbedding(16, 64, init=INIT, precision=FLOAT32, rngs=nnx.Rngs(0)).kernel[...]
    expected = np.sqrt(1 / (16 * 16 * 3))
    assert abs(float(kernel.std()) / expected - 1) < 0.02  # 49,152 draws: 0.3 % is one sigma


pytestmark = pytest.mark.usefixtures("quick_compilation")
WIDTH, HEADS = 16, 2


@pytest.fixture(scope="module")
def pooling():
    # The MLP is a plain one, whatever that of the blocks.
    spec = BlockSpec(width=WIDTH, mlp_dim=32, num_heads=HEADS, gelu="exact", mlp="swiglu")
    return AttentionPooling(spec, first=0, rngs=nnx.Rngs(0))


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
    pooling = AttentionPooling(spec, first=0, rngs=nnx.Rngs(0))
    limit = np.sqrt(6 / (width + width))
    for kernel in (pooling.query.kernel[...], pooling.key_value.kernel[...]):
        assert 0.98 * limit < float(jnp.abs(kernel).max()) <= limit
    # 64 uniform draws come within 20 % of their bound, never above it.
    probe_limit = np.sqrt(6 / (1 + width))
    assert 0.8 * probe_limit < float(jnp.abs(pooling.probe[...]).max()) <= probe_limit
