import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vit_jax.nn.attention import SelfAttention, attend

ROUNDING = 1e-5  # float32 sums of some tens of terms, in another order


def test_attend_is_softmax_of_scaled_products():
    b, n, h, k = 2, 5, 3, 4
    query, key, value = np.random.default_rng(0).normal(size=(3, b, n, h, k)).astype(np.float32)
    expected = np.empty((b, n, h, k))
    for i in range(b):
        for j in range(h):
            logits = query[i, :, j] @ key[i, :, j].T / np.sqrt(k)
            weights = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
            expected[i, :, j] = weights @ value[i, :, j]
    np.testing.assert_allclose(attend(query, key, value), expected, atol=ROUNDING)


def test_softmax_is_in_float32_though_inputs_are_not():
    x = jax.ShapeDtypeStruct((1, 5, 2, 8), jnp.bfloat16)
    text = jax.jit(attend).lower(x, x, x).as_text()
    assert "tensor<1x2x5x5xf32>" in text
    assert jax.eval_shape(attend, x, x, x).dtype == jnp.bfloat16


def test_initialisation_is_xavier_of_each_projection_by_itself():
    width = 64
    attention = SelfAttention(width, 4, dtype=jnp.float32, rngs=nnx.Rngs(0))
    limit = np.sqrt(6 / (width + width))
    for kernel in (attention.qkv.kernel[...], attention.out.kernel[...]):
        # 4096 uniform draws or more come within 2 % of their bound, and never above it.
        assert 0.98 * limit < float(jnp.abs(kernel).max()) <= limit
        assert abs(float(kernel.std()) - limit / np.sqrt(3)) < 0.02 * limit
    assert not attention.qkv.bias[...].any()
