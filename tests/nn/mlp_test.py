import jax
import numpy as np
import pytest
from flax import nnx

from vit_jax.nn.block import Mlp, gelu
from vit_jax.nn.block_spec import BlockSpec

pytestmark = pytest.mark.usefixtures("quick_compilation")
ROUNDING = 1e-5  # float32 sums of some tens of terms, in another order


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", ["swiglu", "geglu"])
def test_gated_mlp_equals_its_formula(kind, bias):
    spec = BlockSpec(width=8, mlp_dim=12, num_heads=1, gelu="exact", mlp=kind, dense_bias=bias)
    mlp = Mlp(spec, rngs=nnx.Rngs(0))
    assert (mlp.fc1.bias is not None) == (mlp.gate.bias is not None) == bias
    x = np.asarray(jax.random.normal(jax.random.key(1), (2, 5, 8)))
    dense = lambda layer, x: x @ np.asarray(layer.kernel) + (np.asarray(layer.bias) if bias else 0)
    gate = dense(mlp.gate, x)
    if kind == "swiglu":
        gate = gate / (1 + np.exp(-gate))
    else:
        gate = np.asarray(jax.nn.gelu(gate, approximate=False))
    expected = dense(mlp.fc2, gate * dense(mlp.fc1, x))
    np.testing.assert_allclose(mlp(x, None), expected, atol=ROUNDING)


@pytest.mark.parametrize(("form", "scanned"), [("tanh", False), ("exact", True)])
def test_gelu_keeps_its_input_alone_for_the_backward_pass(form, scanned):
    x, dy = (jax.random.normal(jax.random.key(i), (3, 50)) * 3 for i in range(2))
    expected, pull_back = jax.vjp(lambda x: jax.nn.gelu(x, approximate=form == "tanh"), x)
    y, own = jax.vjp(lambda x: gelu(form, scanned, x), x)
    np.testing.assert_allclose(y, expected, rtol=0)
    np.testing.assert_allclose(own(dy)[0], pull_back(dy)[0], atol=ROUNDING)
    assert sum(kept.size for kept in jax.tree.leaves(own)) == x.size
    assert sum(kept.size for kept in jax.tree.leaves(pull_back)) > x.size
