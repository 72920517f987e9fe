import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from vit_jax.core.axes import STREAM, WIDTH
from vit_jax.nn.linear import FLOAT32, Precision
from vit_jax.nn.resnet import StdConv, convolve, standardized
from vit_jax.nn.resnet_spec import ResNetSpec, padding

pytestmark = pytest.mark.usefixtures("quick_compilation")
ROUNDING = 1e-5  # float32 sums in another order
OF_VARIANCE, OF_DEVIATION = (1e-10, "variance"), (1e-5, "deviation")


def by_hand(x, kernel, stride, pad):
    """Sums over the kernel's positions, one after another, in float64."""
    x, kernel = np.asarray(x, np.float64), np.asarray(kernel, np.float64)
    k, (height, width) = kernel.shape[0], (-(-side // stride) for side in x.shape[1:3])
    x = np.pad(x, ((0, 0), *pad, (0, 0)))
    y = np.zeros((x.shape[0], height, width, kernel.shape[-1]))
    for i in range(k):
        for j in range(k):
            part = x[:, i : i + height * stride : stride, j : j + width * stride : stride]
            y += part[:, :height, :width] @ kernel[i, j]
    return y


class SameSpec(ResNetSpec):
    pad = "same"


SPECS = {"fixed": ResNetSpec(), "same": SameSpec()}


@pytest.mark.parametrize("size", [(8, 6), (7, 5)])
@pytest.mark.parametrize("pad", ["fixed", "same"])
@pytest.mark.parametrize(("kernel_size", "stride"), [(1, 1), (1, 2), (3, 1), (3, 2), (7, 2)])
def test_it_is_a_convolution_with_standardised_weights(kernel_size, stride, pad, size):
    axes, rngs = (STREAM, WIDTH), nnx.Rngs(0)
    layer = StdConv(kernel_size, (3, 4), axes, SPECS[pad], stride=stride, rngs=rngs)
    x = jax.random.normal(jax.random.key(1), (2, *size, 3))
    kernel = np.asarray(layer.kernel[...], np.float64)
    kernel = (kernel - kernel.mean((0, 1, 2))) / kernel.std((0, 1, 2))
    expected = by_hand(x, kernel, stride, padding(pad, size, kernel_size, stride))
    np.testing.assert_allclose(layer(x), expected, atol=ROUNDING * np.abs(expected).max())


def test_padding_is_that_of_the_released_models():
    assert padding("fixed", (224, 224), 7, 2) == ((3, 3), (3, 3))
    assert padding("same", (224, 224), 7, 2) == ((2, 3), (2, 3))
    assert padding("same", (112, 111), 3, 2) == ((0, 1), (1, 1))
    assert padding("same", (7, 7), 3, 1) == padding("fixed", (7, 7), 3, 1) == ((1, 1), (1, 1))


@pytest.mark.parametrize("standardize", [OF_VARIANCE, OF_DEVIATION])
def test_weights_of_each_output_have_mean_0_and_variance_1(standardize):
    kernel = 3 + 0.1 * jax.random.normal(jax.random.key(0), (3, 3, 8, 4))
    done = standardized(kernel, *standardize)
    np.testing.assert_allclose(done.mean((0, 1, 2)), 0, atol=ROUNDING)
    np.testing.assert_allclose(done.std((0, 1, 2)), 1, rtol=2e-4)  # eps against a deviation of 0.1


def test_the_two_divisors_differ_by_what_eps_is_added_to():
    kernel = 1e-3 * jax.random.normal(jax.random.key(0), (3, 3, 8, 4))
    variance = np.asarray(kernel).var((0, 1, 2))
    for standardize, divisor in (
        ((1e-6, "variance"), np.sqrt(variance + 1e-6)),
        ((1e-3, "deviation"), np.sqrt(variance) + 1e-3),
    ):
        expected = (kernel - kernel.mean((0, 1, 2))) / divisor
        np.testing.assert_allclose(standardized(kernel, *standardize), expected, atol=ROUNDING)


@pytest.mark.parametrize("standardize", [OF_VARIANCE, OF_DEVIATION])
def test_equal_weights_have_finite_gradients(standardize):
    grad = jax.grad(lambda k: standardized(k, *standardize).sum())(jnp.zeros((3, 3, 2, 2)))
    assert jnp.isfinite(grad).all()


@pytest.mark.parametrize("size", [(8, 6), (7, 5)])
@pytest.mark.parametrize("pad", ["fixed", "same"])
@pytest.mark.parametrize(("kernel_size", "stride"), [(3, 1), (3, 2), (7, 2)])
def test_gradients_equal_those_of_jax(kernel_size, stride, pad, size):
    pads = padding(pad, size, kernel_size, stride)
    x = jax.random.normal(jax.random.key(0), (2, *size, 3))
    kernel = jax.random.normal(jax.random.key(1), (kernel_size, kernel_size, 3, 4))

    def plain(x, kernel):
        layout = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(
            x, kernel, (stride, stride), pads, dimension_numbers=layout
        )

    own = lambda x, kernel: convolve(x, kernel, stride, pads, FLOAT32)
    sine = lambda f: jax.grad(lambda *a: jnp.sin(f(*a)).sum(), argnums=(0, 1))(x, kernel)
    for actual, expected in zip(sine(own), sine(plain), strict=True):
        scale = float(jnp.abs(expected).max())
        np.testing.assert_allclose(actual, expected, atol=ROUNDING * scale)


@pytest.mark.parametrize("dtype", [None, jnp.float32, jnp.bfloat16])
def test_the_kernels_gradient_has_its_own_dtype(dtype):
    precision = Precision(compute=jnp.bfloat16, softmax=jnp.float32, gradient=dtype)
    x = jax.random.normal(jax.random.key(0), (2, 8, 8, 3), jnp.bfloat16)
    kernel = jax.random.normal(jax.random.key(1), (3, 3, 3, 4))
    own = lambda k: convolve(x, k, 1, padding("fixed", (8, 8), 3, 1), precision)
    grad = jax.grad(lambda k: jnp.sin(own(k)).sum())(kernel)
    assert grad.dtype == jnp.float32
    assert bool((grad == grad.astype(jnp.bfloat16)).all()) == (dtype != jnp.float32)
