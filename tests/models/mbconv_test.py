import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from vit_jax.models.efficientnet import MBConvSpec, convolve_each
from vit_jax.models.layers.norm import BatchNorm
from vit_jax.models.layers.resnet import padding

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


CHANNELS = 3
RNG = np.random.default_rng(0)
X = (2 + 3 * RNG.normal(size=(4, 5, 6, CHANNELS))).astype(np.float32)
WEIGHTS = RNG.normal(size=X.shape).astype(np.float32)  # of a loss
PARAMS = {
    "scale": RNG.normal(size=CHANNELS),
    "bias": RNG.normal(size=CHANNELS),
    "running_mean": RNG.normal(size=CHANNELS),
    "running_variance": RNG.uniform(0.5, 2, CHANNELS),
}


def run(train, **fields):
    """(y, gradients by name), of the loss sum(y * WEIGHTS)."""
    make = lambda: BatchNorm(CHANNELS, "width", MBConvSpec(**fields))
    graph, _ = nnx.split(nnx.eval_shape(make), nnx.Param)
    params = {name: jnp.asarray(x, jnp.float32) for name, x in PARAMS.items()}

    def loss(params):
        y = nnx.merge(graph, params)(X, train)
        return jnp.sum(y * WEIGHTS), y

    (_, y), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    return y, grads


def normed(mean, variance, epsilon=1e-3):
    return (X - mean) / np.sqrt(variance + epsilon) * PARAMS["scale"] + PARAMS["bias"]


def test_training_takes_the_moments_of_the_batch():
    mean, variance = X.mean((0, 1, 2)), X.var((0, 1, 2))
    y, grads = run(train=True)
    np.testing.assert_allclose(y, normed(mean, variance), atol=ROUNDING)
    standard = (X - mean) / np.sqrt(variance + 1e-3)
    np.testing.assert_allclose(grads["scale"], (standard * WEIGHTS).sum((0, 1, 2)), rtol=1e-4)
    np.testing.assert_allclose(grads["bias"], WEIGHTS.sum((0, 1, 2)), rtol=1e-4)


@pytest.mark.parametrize("momentum", [0.99, 0.9])
def test_the_gradient_of_a_statistic_is_what_a_step_takes_from_it(momentum):
    _, grads = run(train=True, batch_norm_momentum=momentum)
    for name, batch in (
        ("running_mean", X.mean((0, 1, 2))),
        ("running_variance", X.var((0, 1, 2))),
    ):
        after = momentum * PARAMS[name] + (1 - momentum) * batch
        np.testing.assert_allclose(PARAMS[name] - grads[name], after, rtol=ROUNDING)


def test_evaluation_and_frozen_training_take_the_running_ones():
    expected = normed(PARAMS["running_mean"], PARAMS["running_variance"], epsilon=1e-5)
    for how in ({"train": False}, {"train": True, "frozen_statistics": True}):
        y, grads = run(**how, batch_norm_epsilon=1e-5)
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=ROUNDING)
        assert not grads["running_mean"].any() and not grads["running_variance"].any()
        assert grads["scale"].all() and grads["bias"].all()
    fresh = BatchNorm(CHANNELS, "width", MBConvSpec())  # which changes nothing
    np.testing.assert_allclose(fresh(X), X / np.sqrt(1 + 1e-3), atol=ROUNDING)


def test_moments_are_float32_and_the_result_is_not():
    y, grads = run(train=True, dtype="bfloat16")
    assert y.dtype == jnp.bfloat16
    exact, of_float32 = run(train=True)
    np.testing.assert_allclose(y.astype(np.float32), exact, rtol=1e-2, atol=1e-2)
    np.testing.assert_array_equal(grads["running_mean"], of_float32["running_mean"])
