import jax
import numpy as np
from flax import nnx

from vit_jax.nn.linear import FLOAT32
from vit_jax.nn.patches import PatchEmbedding

ROUNDING = 1e-5  # float32 sums of 48 terms in another order


def test_equals_a_strided_convolution():
    patches = PatchEmbedding(4, 8, precision=FLOAT32, rngs=nnx.Rngs(0))
    images = jax.random.normal(jax.random.key(1), (2, 8, 12, 3))
    expected = jax.lax.conv_general_dilated(
        images,
        patches.kernel[...],
        window_strides=(4, 4),
        padding="VALID",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        precision="highest",
    )
    np.testing.assert_allclose(patches(images), expected.reshape(2, 6, 8), atol=ROUNDING)


def test_kernel_is_lecun_normal():
    kernel = PatchEmbedding(16, 64, precision=FLOAT32, rngs=nnx.Rngs(0)).kernel[...]
    expected = np.sqrt(1 / (16 * 16 * 3))
    assert abs(float(kernel.std()) / expected - 1) < 0.02  # 49,152 draws: 0.3 % is one sigma
