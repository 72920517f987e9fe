import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.extend.core import jaxprs_in_params

from tests.xla_flags import AS_USUAL
from vit_jax.core import pytrees
from vit_jax.core.axes import Target
from vit_jax.models.layers.block import Block, BlockSpec
from vit_jax.models.layers.linear import param
from vit_jax.models.layers.stack import REMAT_POLICIES, Stack, StackSpec

pytestmark = pytest.mark.usefixtures("quick_compilation")
AGREEMENT = 1e-5  # relative to the largest entry
BFLOAT16 = 0.01  # likewise; a CPU's program rounds fewer intermediate results than it says


def make_stack(scan=False, remat="none", stochastic_depth=0.3, converts=False, **numerics):
    spec = BlockSpec(width=16, mlp_dim=32, num_heads=2, dropout=0.1, layer_scale=0.1, **numerics)
    stack = Stack(
        lambda rngs: Block(spec, rngs=rngs),
        StackSpec(scan=scan, remat=remat),
        depth=3,
        stochastic_depth=stochastic_depth,
        rngs=nnx.Rngs(0),
    )
    stack.converts = converts
    return stack


def outputs_and_gradients(stack, compiler_options=None):
    graph, params = nnx.split(stack, nnx.Param)
    x = jax.random.normal(jax.random.key(1), (2, 5, 16))

    def f(params):
        y = nnx.merge(graph, params)(x, jax.random.key(2))
        return jnp.sum(jnp.sin(y)), y

    run = jax.jit(jax.value_and_grad(f, has_aux=True), compiler_options=compiler_options)
    (_, y), grads = run(params)
    return y, nnx.to_pure_dict(grads)


@pytest.fixture(scope="module")
def unrolled():
    return outputs_and_gradients(make_stack())


# What the other policies keep, test_which_products_are_computed_again sees in the jaxpr.
WAYS = [(True, "none"), (True, "full"), (False, "dots"), (False, "offload")]


@pytest.mark.parametrize(("scan", "remat"), WAYS)
def test_ways_to_run_it_agree(scan, remat, unrolled):
    expected_y, expected_grads = unrolled
    y, grads = outputs_and_gradients(make_stack(scan, remat))
    np.testing.assert_allclose(y, expected_y, atol=AGREEMENT * float(jnp.abs(expected_y).max()))
    expected = pytrees.flatten(expected_grads)
    for name, grad in pytrees.flatten(grads).items():
        scale = float(jnp.abs(expected[name]).max())
        np.testing.assert_allclose(grad, expected[name], atol=AGREEMENT * scale, err_msg=name)


def test_scanned_layers_that_a_tpu_converts_agree_too(monkeypatch):
    expected = outputs_and_gradients(make_stack(scan=True), AS_USUAL)
    monkeypatch.setattr("vit_jax.models.layers.faster.target", lambda: Target("tpu", "TPU v5 lite"))
    got = outputs_and_gradients(make_stack(scan=True, converts=True), AS_USUAL)
    jax.tree.map(np.testing.assert_array_equal, got, expected)


def test_a_tpus_scan_stacks_gradients_of_kernels_as_they_are_computed(monkeypatch):
    make = functools.partial(make_stack, scan=True, converts=True, dtype="bfloat16")
    expected = pytrees.flatten(outputs_and_gradients(make())[1])
    monkeypatch.setattr("vit_jax.models.layers.faster.target", lambda: Target("tpu", "TPU v5 lite"))
    of_fc1 = "bf16[3,16,32]"  # all layers
    assert of_fc1 in str(jax.make_jaxpr(lambda: outputs_and_gradients(make()))())
    in_float32 = lambda: outputs_and_gradients(make(gradient_dtype="float32"))
    assert of_fc1 not in str(jax.make_jaxpr(in_float32)())
    _, grads = outputs_and_gradients(make())
    for name, grad in pytrees.flatten(grads).items():
        assert grad.dtype == jnp.float32
        scale = float(jnp.abs(expected[name]).max())
        np.testing.assert_allclose(grad, expected[name], atol=BFLOAT16 * scale, err_msg=name)


def num_products(remat, scan):
    """Matrix products of a forward and a backward pass; those of a loop's body count once."""
    graph, params = nnx.split(make_stack(scan, remat), nnx.Param)
    f = lambda params, x: nnx.merge(graph, params)(x).sum()

    def count(jaxpr):
        inside = [sub for e in jaxpr.eqns for sub in jaxprs_in_params(e.params)]
        own = sum(e.primitive.name == "dot_general" for e in jaxpr.eqns)
        return own + sum(map(count, inside))

    return count(jax.make_jaxpr(jax.grad(f))(params, jnp.ones((2, 5, 16))).jaxpr)


@pytest.mark.parametrize("scan", [True, False])
def test_remat_recomputes_these_products(scan):
    layers = 1 if scan else 3
    none = num_products("none", scan)
    again = {remat: (num_products(remat, scan) - none) / layers for remat in REMAT_POLICIES}
    # Attention's two and the four with a kernel. XLA drops the last, whose result is unused.
    assert again == {"none": 0, "dots": 0, "dots_no_batch": 2, "full": 6, "offload": 6}


def test_layers_differ_and_do_not_depend_on_how_they_are_run():
    scanned, unrolled = (make_stack(scan).block.mlp.fc1.kernel[...] for scan in (True, False))
    np.testing.assert_array_equal(scanned, unrolled)
    assert not np.array_equal(scanned[0], scanned[1])


class AddsItsRate(nnx.Module):
    def __init__(self, rngs):
        self.zero = param(lambda *_: jnp.zeros(()), (), (), None)

    def __call__(self, x, key, rate):
        return x + rate + self.zero[...]


@pytest.mark.parametrize(("constant", "sums"), [(False, [0, 0.1, 0.3]), (True, [0.2, 0.4, 0.6])])
def test_stochastic_depth_rises_or_is_constant(constant, sums):
    stack = Stack(
        AddsItsRate, StackSpec(), depth=3, stochastic_depth=0.2, constant_depth=constant,
        rngs=nnx.Rngs(0),
    )  # fmt: skip
    after = stack.outputs(jnp.zeros(()), jax.random.key(0))
    np.testing.assert_allclose(after, sums, rtol=1e-6)


class AddsADraw(AddsItsRate):
    def __call__(self, x, key, rate):
        return super().__call__(x, key, jax.random.uniform(key))


@pytest.mark.parametrize("scan", [True, False])
def test_each_layer_draws_anew(scan):
    stack = Stack(AddsADraw, StackSpec(scan=scan), depth=3, rngs=nnx.Rngs(0))
    after = stack.outputs(jnp.zeros((1, 1)), jax.random.key(0))
    draws = np.diff(np.ravel(after), prepend=0)
    assert len(np.unique(draws.round(5))) == 3
