import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.nn.efficientnet.mbconv import convolve_each
from vit_jax.nn.resnet_spec import padding

pytestmark = pytest.mark.usefixtures("quick_compilation")
ROUNDING = 1e-5  # float32 sums in another order
DRAW = np.random.default_rng(0).normal


@pytest.mark.parametrize("kind", ["same", "fixed"])
@pytest.mark.parametrize(("kernel_size", "stride"), [(3, 1), (3, 2), (5, 1), (5, 2)])
def test_a_channels_convolution_and_its_gradients(kind, kernel_size, stride):
    """By definition, and by JAX's own rules."""
    x, kernel = DRAW(size=(2, 7, 6, 3)), DRAW(size=(kernel_size, kernel_size, 3))
    pad = padding(kind, (7, 6), kernel_size, stride)
    wide = np.pad(x, ((0, 0), *pad, (0, 0)))
    expected = np.zeros((2, -(-7 // stride), -(-6 // stride), 3))
    for row, column in np.ndindex(expected.shape[1:3]):
        top, left = stride * row, stride * column
        window = wide[:, top : top + kernel_size, left : left + kernel_size]
        expected[:, row, column] = (window * kernel).sum((1, 2))
    weights = DRAW(size=expected.shape)
    x, kernel = jnp.float32(x), jnp.float32(kernel)

    def plain(x, kernel):
        return jax.lax.conv_general_dilated(
            x, kernel[:, :, None], (stride, stride), pad, feature_group_count=3,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )  # fmt: skip

    def results(convolve):
        y, back = jax.vjp(convolve, x, kernel)
        return y, *back(jnp.float32(weights))

    own = jax.jit(lambda: results(lambda x, k: convolve_each(x, k, stride, pad)))()
    np.testing.assert_allclose(own[0], expected, atol=10 * ROUNDING)
    for ours, theirs in zip(own, jax.jit(lambda: results(plain))(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=ROUNDING * float(jnp.abs(theirs).max()))


def test_in_bfloat16_sums_are_float32():
    x, dy = (jnp.bfloat16(DRAW(size=(4, 9, 9, 2))) for _ in range(2))
    kernel, pad = jnp.float32(DRAW(size=(3, 3, 2))), ((1, 1), (1, 1))
    y, back = jax.vjp(lambda x, k: convolve_each(x, k, 1, pad), x, kernel)
    dx, d_kernel = back(dy)
    assert (y.dtype, dx.dtype, d_kernel.dtype) == (jnp.bfloat16, jnp.bfloat16, jnp.float32)
