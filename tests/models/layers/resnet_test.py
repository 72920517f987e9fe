import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from vit_jax.core import pytrees
from vit_jax.models.family import ModelSpec
from vit_jax.models.layers.linear import FLOAT32, Precision
from vit_jax.models.layers.resnet import ResNet, ResNetSpec, convolve, padding, standardized
from vit_jax.models.layers.stack import unit_input_bytes

pytestmark = pytest.mark.usefixtures("quick_compilation")
AGREEMENT = 1e-4  # for float32 in another order, through several norms; relative to the largest
STYLES = ("pre", "post")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spec(ModelSpec, ResNetSpec):
    pass


class PostSpec(Spec):
    pre_activation, pad = False, "same"


def spec_of(style, units=(1, 3), root_width=32, **run):
    if style == "pre":
        return Spec(units=units, root_width=root_width, **run)
    of_hybrids = {"weight_epsilon": 1e-5, "weight_epsilon_of": "deviation"}
    return PostSpec(
        units=units, root_width=root_width, group_norm_epsilon=1e-6, **of_hybrids, **run
    )


def resnet(style, units=(1, 3), **run):
    return ResNet(spec_of(style, units, **run), rngs=nnx.Rngs(0))


def group_norm(x, layer, eps, index=None):
    scale, bias = (np.asarray(p[...] if index is None else p[index]) for p in
                   (layer.scale, layer.bias))  # fmt: skip
    groups = x.reshape(x.shape[0], -1, 32, x.shape[-1] // 32)
    mean, var = groups.mean((1, 3), keepdims=True), groups.var((1, 3), keepdims=True)
    return ((groups - mean) / np.sqrt(var + eps)).reshape(x.shape) * scale + bias


def std_conv(x, layer, pad, stride=1, index=None):
    """Standardised convolution as a product with all k x k windows."""
    kernel = np.asarray(layer.kernel[...] if index is None else layer.kernel[index], np.float64)
    kernel = (kernel - kernel.mean((0, 1, 2))) / kernel.std((0, 1, 2))
    k = kernel.shape[0]
    x = np.pad(x, ((0, 0), *padding(pad, x.shape[1:3], k, stride), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(x, (k, k), axis=(1, 2))
    return np.einsum("bhwcij,ijco->bhwo", windows[:, ::stride, ::stride], kernel)


relu = lambda x: np.maximum(x, 0)


def root(x, model, pad):
    x = std_conv(x, model.root.conv, pad, 2)
    if not model.root.spec.pre_activation:
        x = relu(group_norm(x, model.root.norm, 1e-6))
    x = np.pad(x, ((0, 0), *padding(pad, x.shape[1:3], 3, 2), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(1, 2))
    return windows[:, ::2, ::2].max((-2, -1))


def pre_activated(x, u, i, stride, projects):
    y = relu(group_norm(x, u.norm1, 1e-5, i))
    shortcut = std_conv(y, u.projection, "fixed", stride, i) if projects else x
    y = relu(group_norm(std_conv(y, u.conv1, "fixed", 1, i), u.norm2, 1e-5, i))
    y = relu(group_norm(std_conv(y, u.conv2, "fixed", stride, i), u.norm3, 1e-5, i))
    return shortcut + std_conv(y, u.conv3, "fixed", 1, i)


def post_activated(x, u, i, stride, projects):
    shortcut = x
    if projects:
        shortcut = group_norm(
            std_conv(x, u.projection, "same", stride, i), u.projection_norm, 1e-6, i
        )
    y = relu(group_norm(std_conv(x, u.conv1, "same", 1, i), u.norm1, 1e-6, i))
    y = relu(group_norm(std_conv(y, u.conv2, "same", stride, i), u.norm2, 1e-6, i))
    y = group_norm(std_conv(y, u.conv3, "same", 1, i), u.norm3, 1e-6, i)
    return relu(shortcut + y)


@pytest.mark.parametrize("style", STYLES)
def test_computes_the_papers_equations(style, drawn):
    """Compares with the same in NumPy."""
    model = drawn(lambda: resnet(style))
    images = jax.random.normal(jax.random.key(0), (2, 32, 48, 3))
    unit = pre_activated if style == "pre" else post_activated
    x = root(np.asarray(images, np.float64), model, spec_of(style).pad)
    x = unit(x, model.stage1.first.block, 0, 1, True)
    x = unit(x, model.stage2.first.block, 0, 2, True)
    expected = [x]
    for i in range(2):
        x = unit(x, model.stage2.rest.block, i, 1, False)
        expected.append(x)
    feature_map, layers = nnx.jit(lambda m, x: m(x, layers=(1, 2, 3)))(model, images)
    assert feature_map.shape == (2, 4, 6, 256)
    for there, here in zip((feature_map, *layers), (x, *expected), strict=True):
        np.testing.assert_allclose(there, here, atol=AGREEMENT * np.abs(here).max())


OF_WAYS = (3,)  # units of one stage: a first, and two to scan over


def outcome(model):
    """The feature map of some images, and gradients by name."""
    images = jax.random.normal(jax.random.key(0), (2, 32, 32, 3))
    graph, params = nnx.split(model, nnx.Param)

    def f(params):
        y, _ = nnx.merge(graph, params)(images)
        return jnp.sum(jnp.sin(y)), y

    (_, y), grads = jax.jit(jax.value_and_grad(f, has_aux=True))(params)
    return y, pytrees.flatten(nnx.to_pure_dict(grads))


@pytest.fixture(scope="module")
def unrolled(drawn):
    return outcome(drawn(lambda: resnet("pre", OF_WAYS)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scan", "remat"), [(True, "none"), (False, "full"), (False, "dots"), (True, "full")]
)
def test_ways_to_run_the_units_agree(scan, remat, unrolled, drawn):
    expected_y, expected = unrolled
    y, grads = outcome(drawn(lambda: resnet("pre", OF_WAYS, scan=scan, remat=remat)))
    np.testing.assert_allclose(y, expected_y, atol=AGREEMENT * float(jnp.abs(expected_y).max()))
    for name, grad in grads.items():
        scale = float(jnp.abs(expected[name]).max())
        np.testing.assert_allclose(grad, expected[name], atol=AGREEMENT * scale, err_msg=name)


def test_a_scan_does_not_recompute_convolutions():
    def convolutions(remat):
        abstract = nnx.eval_shape(lambda: resnet("pre", scan=True, remat=remat))
        graph, params = nnx.split(abstract, nnx.Param)
        f = lambda p, x: nnx.merge(graph, p)(x)[0].sum()
        text = jax.jit(jax.grad(f)).lower(params, jnp.ones((1, 32, 32, 3))).as_text()
        return text.count("stablehlo.convolution")

    # Forward, and backward for images and kernel: the root, the scan's 3 x 3 and two others; the
    # images themselves have no gradient.
    assert convolutions("dots") == 3 * 4 - 1
    assert convolutions("full") > 3 * 4 - 1


def test_bytes_of_one_unit_are_those_by_hand():
    root_, places = 32 * 16 * 16, 8 * 8
    pre, post = (spec_of(style, (1,)).map_bytes((32, 32)) for style in STYLES)
    assert pre == 2 * (root_ + 3 * 32 * places)
    assert post == pre + 2 * 2 * 128 * places
    assert unit_input_bytes(spec_of("pre", (1,)).each_unit((32, 32))) == 2 * 32 * places


ROUNDING = 1e-5  # float32 sums in another order
OF_VARIANCE, OF_DEVIATION = (1e-10, "variance"), (1e-5, "deviation")


def test_padding_is_that_of_the_released_models():
    assert padding("fixed", (224, 224), 7, 2) == ((3, 3), (3, 3))
    assert padding("same", (224, 224), 7, 2) == ((2, 3), (2, 3))
    assert padding("same", (112, 111), 3, 2) == ((0, 1), (1, 1))
    assert padding("same", (7, 7), 3, 1) == padding("fixed", (7, 7), 3, 1) == ((1, 1), (1, 1))


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


@pytest.mark.parametrize(
    ("kernel_size", "stride", "pad", "size"),
    [
        (3, 1, "same", (7, 5)),
        (3, 2, "fixed", (8, 6)),
        (7, 2, "same", (8, 5)),
        (7, 2, "fixed", (7, 6)),
    ],
)
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


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_kernels_gradient_has_its_own_dtype(dtype):
    precision = Precision(compute=jnp.bfloat16, softmax=jnp.float32, gradient=dtype)
    x = jax.random.normal(jax.random.key(0), (2, 8, 8, 3), jnp.bfloat16)
    kernel = jax.random.normal(jax.random.key(1), (3, 3, 3, 4))
    own = lambda k: convolve(x, k, 1, padding("fixed", (8, 8), 3, 1), precision)
    grad = jax.grad(lambda k: jnp.sin(own(k)).sum())(kernel)
    assert grad.dtype == jnp.float32
    assert bool((grad == grad.astype(jnp.bfloat16)).all()) == (dtype != jnp.float32)
