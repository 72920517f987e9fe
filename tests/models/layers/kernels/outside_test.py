"""Every program of attention, against other projects' functions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.models.layers.kernels.xla_test import ROUNDING, assert_close, outputs_and_gradients
from vit_jax.models.layers.kernels import fused, splash, xla

OURS = {
    "xla": lambda *qkv: xla.attend(*qkv, jnp.dtype("float32")),
    "xla in blocks": lambda *qkv: xla.attend_in_blocks(*qkv, jnp.dtype("float32")),
    "fused": fused.attend,
    "splash": splash.attend,
}


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, "float32") for name in OURS), ("xla", "bfloat16")]
)
def test_equals_jax_and_flax(name, dtype):
    actual = outputs_and_gradients(OURS[name], dtype, 19, head_size=16)
    for theirs in (jax.nn.dot_product_attention, nnx.dot_product_attention):
        expected = outputs_and_gradients(theirs, dtype, 19, head_size=16)
        assert_close(actual, expected, ROUNDING[dtype])


@pytest.mark.parity
@pytest.mark.parametrize("name", OURS)
def test_equals_torch(name):
    torch = pytest.importorskip("torch")
    arrays = np.random.default_rng(0).normal(size=(4, 2, 19, 2, 16)).astype(np.float32)
    query, key, value = (torch.tensor(x.swapaxes(1, 2), requires_grad=True) for x in arrays[:3])
    y = torch.nn.functional.scaled_dot_product_attention(query, key, value)
    y.backward(torch.tensor(arrays[3].swapaxes(1, 2)))
    expected = [x.detach().numpy().swapaxes(1, 2) for x in (y, query.grad, key.grad, value.grad)]
    ours, back = jax.vjp(jax.jit(OURS[name]), *map(jnp.asarray, arrays[:3]))
    assert_close((ours, *back(jnp.asarray(arrays[3]))), expected, ROUNDING["float32"])
