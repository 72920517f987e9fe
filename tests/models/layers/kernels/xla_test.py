import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.models.layers.kernels import xla
from vit_jax.models.layers.kernels.xla import attend
from vit_jax.models.layers.logits import Cap, LogitTransform, add_bias

pytestmark = pytest.mark.usefixtures("quick_compilation")
# Relative to the greatest entry: float32 sums in another order; bfloat16 products, each rounded.
ROUNDING = {"float32": 5e-6, "bfloat16": 2**-6}


def outputs_and_gradients(f, dtype, tokens, num_heads=2, head_size=8):
    shape = (4, 2, tokens, num_heads, head_size)
    query, key, value, dy = jax.random.normal(jax.random.key(0), shape, dtype)

    @jax.jit
    def run(*arrays):
        y, back = jax.vjp(f, *arrays)
        return y, *back(dy)

    return run(2 * query, key, value)


def assert_close(actual, expected, rounding):
    for a, b in zip(actual, expected, strict=True):
        assert a.dtype == b.dtype
        scale = float(jnp.abs(b).max())
        np.testing.assert_allclose(
            np.asarray(a, np.float32), np.asarray(b, np.float32), atol=rounding * scale
        )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tokens", [5, 24, 25])
def test_equals_attention_as_a_whole(dtype, tokens, monkeypatch):
    monkeypatch.setattr(xla, "BLOCK", 8)
    softmax = jnp.dtype("float32")
    expected = outputs_and_gradients(lambda *qkv: attend(*qkv, softmax), dtype, tokens)
    actual = outputs_and_gradients(lambda *qkv: xla.attend_in_blocks(*qkv, softmax), dtype, tokens)
    assert_close(actual, expected, ROUNDING[dtype])


@pytest.mark.parametrize("images", [1, 2], ids=["shared", "each"])
def test_a_cap_and_a_bias_are_the_formula(images):
    """Gradients too; a bias that images share gets the sum of theirs."""
    shape = (2, 5, 2, 4)
    keys = jax.random.split(jax.random.key(0), 4)
    qkv = [3 * jax.random.normal(key, shape) for key in keys[:3]]
    bias = jax.random.normal(keys[3], (images, 2, 5, 5))

    def formula(query, key, value, bias):
        logits = jnp.einsum("bqhk,bshk->bhqs", query, key) / 2
        weights = jax.nn.softmax(1.5 * jnp.tanh(logits / 1.5) + bias)
        return jnp.einsum("bhqs,bshk->bqhk", weights, value)

    def ours(query, key, value, bias):
        transforms = LogitTransform("cap", Cap(1.5)), LogitTransform("bias", add_bias, bias)
        return attend(query, key, value, jnp.dtype("float32"), transforms)

    of = lambda f: jax.value_and_grad(lambda *x: jnp.sum(f(*x) ** 3), range(4))(*qkv, bias)
    (loss, gradients), (wanted, expected) = of(ours), of(formula)
    np.testing.assert_allclose(loss, wanted, rtol=1e-5)
    assert_close(gradients, expected, 1e-5)


def test_the_softmax_may_be_in_bfloat16(monkeypatch):
    monkeypatch.setattr(xla, "BLOCK", 8)
    of = lambda f, softmax: outputs_and_gradients(lambda *qkv: f(*qkv, softmax), "bfloat16", 20)
    expected, actual = of(attend, jnp.bfloat16), of(xla.attend_in_blocks, jnp.bfloat16)
    assert_close(actual, expected, 2**-4)  # either is that far from a softmax in float32


def temporary_bytes(f, tokens):
    x = jax.ShapeDtypeStruct((1, tokens, 2, 8), jnp.float32)

    def run(query, key, value, dy):
        y, back = jax.vjp(lambda *qkv: f(*qkv, jnp.dtype("float32")), query, key, value)
        return y, back(dy)

    return jax.jit(run).lower(x, x, x, x).compile().memory_analysis().temp_size_in_bytes


def test_memory_grows_with_the_tokens_and_not_with_their_square():
    once, twice = (temporary_bytes(xla.attend_in_blocks, tokens) for tokens in (1024, 2048))
    assert twice < 2.2 * once
    assert temporary_bytes(attend, 2048) > 3 * twice
