"""Every program of attention, against other projects' functions."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from vit_jax import weights
from vit_jax.core import axes
from vit_jax.models.layers.kernels import choice, fused, splash, xla

ROUNDING = 5e-6  # relative to the greatest entry: float32 sums in another order
TRAINED = Path(__file__).parents[4] / "shared/data/vit_ti16_augreg"
OURS = {
    "xla in blocks": lambda *qkv: xla.attend_in_blocks(*qkv, jnp.dtype("float32")),
    "fused": fused.attend,
    "splash": splash.attend,
}


@pytest.fixture(scope="module")
def arrays():
    return np.random.default_rng(0).normal(size=(4, 2, 19, 2, 16)).astype(np.float32)


def outputs_and_gradients(f, query, key, value, dy):
    y, back = jax.vjp(f, *map(jnp.asarray, (query, key, value)))
    return y, *back(jnp.asarray(dy))


def assert_close(actual, expected):
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=ROUNDING * np.abs(b).max())


@pytest.mark.parametrize("name", OURS)
def test_equals_jax_and_flax(name, arrays):
    actual = outputs_and_gradients(jax.jit(OURS[name]), *arrays)
    for theirs in (jax.nn.dot_product_attention, nnx.dot_product_attention):
        assert_close(actual, outputs_and_gradients(theirs, *arrays))


@pytest.mark.parity
@pytest.mark.parametrize("name", OURS)
def test_equals_torch(name, arrays):
    torch = pytest.importorskip("torch")
    query, key, value = (torch.tensor(x.swapaxes(1, 2), requires_grad=True) for x in arrays[:3])
    y = torch.nn.functional.scaled_dot_product_attention(query, key, value)
    y.backward(torch.tensor(arrays[3].swapaxes(1, 2)))
    expected = [x.detach().numpy().swapaxes(1, 2) for x in (y, query.grad, key.grad, value.grad)]
    assert_close(outputs_and_gradients(jax.jit(OURS[name]), *arrays), expected)


@pytest.mark.slow
@pytest.mark.skipif(not TRAINED.is_dir(), reason=f"{TRAINED} is not there")
@pytest.mark.parametrize("name", ["fused", "splash"])
def test_a_trained_model_gives_the_same_logits(name, monkeypatch):
    model = weights.load(TRAINED)
    images = jax.random.uniform(jax.random.key(0), (2, 224, 224, 3), minval=-1)
    expected = jax.jit(lambda x: model(x, train=False))(images)
    calls = []
    monkeypatch.setattr(choice, "choose", lambda *_, **__: calls.append(name) or name)
    actual = jax.jit(lambda x: model(x, train=False))(images)
    assert calls and axes.target().platform == "cpu"  # where Pallas interprets the kernels
    np.testing.assert_allclose(actual, expected, atol=1e-5 * float(jnp.abs(expected).max()))
