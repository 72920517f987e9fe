import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.weights.conftest import randomised
from vit_jax.core.axes import Target
from vit_jax.models.layers import faster, linear
from vit_jax.models.layers.linear import FLOAT32, Precision, affine, quantise, sum_of_rows

pytestmark = pytest.mark.usefixtures("quick_compilation")
ROUNDING = 1e-5  # sums of up to 30 float32 products of order one, in another order


@pytest.mark.parametrize(
    ("x_shape", "kernel_shape", "contracted"),
    [
        ((5, 3), (3, 4), 1),
        ((2, 5, 3), (3, 4), 1),
        ((2, 5, 3), (3, 3, 2, 4), 1),  # query, key and value
        ((2, 5, 2, 4), (2, 4, 3), 2),  # of heads
        ((3,), (3, 4), 1),
    ],
)
def test_affine_and_its_gradients_equal_a_tensordot_and_a_sum(x_shape, kernel_shape, contracted):
    keys = jax.random.split(jax.random.key(0), 4)
    x, kernel = jax.random.normal(keys[0], x_shape), jax.random.normal(keys[1], kernel_shape)
    bias = jax.random.normal(keys[3], kernel_shape[contracted:])
    plain = lambda x, k, b: jnp.tensordot(x, k, contracted) + b
    expected, expected_vjp = jax.vjp(plain, x, kernel, bias)
    actual, actual_vjp = jax.vjp(
        lambda x, k, b: affine(x, k, b, contracted, FLOAT32), x, kernel, bias
    )
    np.testing.assert_allclose(actual, expected, atol=ROUNDING)
    dy = jax.random.normal(keys[2], expected.shape)
    for a, b in zip(actual_vjp(dy), expected_vjp(dy), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(a, b, atol=ROUNDING)


@pytest.mark.parametrize("compute", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("gradient", [None, jnp.float32, jnp.bfloat16])
def test_the_kernels_gradient_has_its_precision(compute, gradient):
    precision = Precision(compute, jnp.float32, gradient)
    keys = jax.random.split(jax.random.key(0), 2)
    x = jax.random.normal(keys[0], (300, 3), compute)
    kernel = jax.random.normal(keys[1], (3, 4), jnp.float32)
    y, vjp = jax.vjp(lambda x, k: affine(x, k, None, 1, precision), x, kernel)
    dx, d_kernel = vjp(y)
    assert (y.dtype, dx.dtype, d_kernel.dtype) == (compute, compute, jnp.float32)
    in_bfloat16 = d_kernel == d_kernel.astype(jnp.bfloat16)
    assert bool(in_bfloat16.all()) == ((gradient or compute) == jnp.bfloat16)


@pytest.mark.parametrize(("platform", "rows_in"), [("cpu", 2), ("gpu", 1)])
def test_rows_of_bfloat16_stay_in_their_axes_on_a_cpu(platform, rows_in, monkeypatch):
    """XLA's fast products there need them so (benchmarks/xla_cpu_bfloat16.py)."""
    monkeypatch.setattr(linear, "target", lambda: Target(platform, platform))
    precision = Precision(jnp.bfloat16, jnp.float32, None)
    keys = jax.random.split(jax.random.key(0), 3)
    x, dy = (jax.random.normal(key, (2, 5, 3), jnp.bfloat16) for key in keys[:2])
    kernel = jax.random.normal(keys[2], (3, 3))
    gradient = lambda k: jax.vjp(lambda k: affine(x, k, None, 1, precision), k)[1](dy)[0]
    products = [
        e for e in jax.make_jaxpr(gradient)(kernel).eqns if e.primitive.name == "dot_general"
    ]
    (contracted, _), _ = products[-1].params["dimension_numbers"]
    assert len(contracted) == rows_in
    expected = jnp.einsum("abi,abo->io", x.astype(jnp.float32), dy.astype(jnp.float32))
    np.testing.assert_allclose(gradient(kernel), expected, rtol=2**-8)  # one rounding to bfloat16


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("platform", ["cpu", "tpu"])  # there as a product
def test_rows_are_summed_in_float32(platform, dtype, monkeypatch):
    monkeypatch.setattr(faster, "target", lambda: Target(platform, platform))
    x = jax.random.normal(jax.random.key(0), (7, 300, 2, 3)).astype(dtype)
    total = jax.jit(faster.replacing("sum_of_rows", sum_of_rows), static_argnums=1)(x, 2)
    assert total.dtype == jnp.float32
    expected = np.asarray(x, np.float64).sum(axis=(0, 1))
    np.testing.assert_allclose(total, expected, atol=100 * ROUNDING)  # of 2,100 summands


def test_the_gradient_of_the_kernel_needs_no_transposition():
    """Products of rows of inputs and rows of gradients, in this order, are fast on a CPU."""
    gradient = jax.grad(lambda k, x: (affine(x, k, None, 1, FLOAT32) ** 2).sum())
    program = str(jax.make_jaxpr(gradient)(jnp.ones((3, 4)), jnp.ones((2, 5, 3))))
    assert "transpose[" not in program


# --- kernels of int8: their error is half a step at most, whatever layout they have

TOY = {"depth": 2, "width": 16, "mlp_dim": 24, "num_heads": 2, "num_classes": 3, "image_size": 8}


def logits(model, images):
    graph, params = nnx.split(model, nnx.Param)
    return np.asarray(jax.jit(lambda p, x: nnx.merge(graph, p)(x))(params, images))


def rounded(kernel, inputs):
    step = np.abs(kernel).max(inputs, keepdims=True) / 127
    return np.rint(kernel / step) * step


@pytest.mark.parametrize("scan", [False, True])
def test_computes_with_the_rounded_kernels(scan):
    model, plain = (randomised("ViT-Ti/4", scan=scan, **TOY).model for _ in range(2))
    images = np.random.default_rng(1).normal(size=(2, 8, 8, 3)).astype(np.float32)
    quantise(model)
    layers = [(path, m) for path, m in nnx.iter_graph(model) if hasattr(m, "kernel_scale")]
    assert len(layers) == 5  # four of the blocks, and the head
    for (path, layer), (_, before) in zip(
        layers,
        [(p, m) for p, m in nnx.iter_graph(plain) if hasattr(m, "kernel_scale")],
        strict=True,
    ):
        assert layer.kernel.dtype == np.int8, path
        stacked = int("block" in path)
        inputs = tuple(range(stacked, stacked + layer.contracted))
        before.kernel[...] = rounded(np.asarray(before.kernel[...]), inputs)
        assert layer.kernel_scale.shape == np.asarray(before.kernel[...]).max(inputs).shape
    np.testing.assert_allclose(logits(model, images), logits(plain, images), atol=1e-5)


def test_an_output_without_weights_stays_zero():
    model = randomised("ViT-Ti/4", **TOY).model
    model.head.kernel[...] = np.zeros(model.head.kernel.shape, np.float32)
    quantise(model)
    assert np.isfinite(np.asarray(model.head.kernel_scale[...])).all()
    assert not np.asarray(model.head.kernel[...]).any()
