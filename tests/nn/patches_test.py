import jax
import numpy as np
import pytest
from flax import nnx

from vit_jax.nn.linear import FLOAT32
from vit_jax.nn.patches import PatchEmbedding

ROUNDING = 1e-5  # float32 sums of 48 terms in another order


@pytest.mark.parametrize(("size", "crop"), [((8, 12), False), ((8, 12), True), ((11, 13), True)])
def test_equals_a_strided_convolution(size, crop):
    patches = PatchEmbedding(4, 8, crop=crop, precision=FLOAT32, rngs=nnx.Rngs(0))
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
    patches = PatchEmbedding(4, 8, precision=FLOAT32, rngs=nnx.Rngs(0))
    with pytest.raises(TypeError, match="reshape"):
        patches(jax.numpy.zeros((2, 11, 13, 3)))


def test_kernel_is_lecun_normal():
    kernel = PatchEmbedding(16, 64, precision=FLOAT32, rngs=nnx.Rngs(0)).kernel[...]
    expected = np.sqrt(1 / (16 * 16 * 3))
    assert abs(float(kernel.std()) / expected - 1) < 0.02  # 49,152 draws: 0.3 % is one sigma
