import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from vit_jax.models.layers.block import BlockSpec
from vit_jax.models.layers.tokens import AttentionPooling, PatchEmbedding
from vit_jax.models.vit import ViTSpec

SPEC = ViTSpec(patch_size=4, depth=1, width=8, mlp_dim=8, num_heads=2)
ROUNDING = 1e-5  # float32 sums of 48 terms in another order


@pytest.mark.parametrize("size", [(8, 12), (11, 13)])
def test_equals_a_strided_convolution(size):
    patches = PatchEmbedding(SPEC, 4, 3, nnx.Rngs(0))
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


pytestmark = pytest.mark.usefixtures("quick_compilation")
WIDTH, HEADS = 16, 2


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
