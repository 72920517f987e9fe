"""Multi-head self-attention (appendix A)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn import initializers

from vit_jax.core.axes import (
    BATCH,
    HEAD_SIZE,
    HEADS,
    QKV,
    STREAM,
    TOKENS,
    WIDTH,
    constrain,
)  # fmt: skip
from vit_jax.nn.linear import Linear

XAVIER = initializers.xavier_uniform()


class SelfAttention(nnx.Module):
    """Query, key and value from one product, softmax in float32, no dropout on the weights."""

    def __init__(self, width: int, heads: int, *, dtype: Any, rngs: nnx.Rngs):
        self.qkv = input_projections(3, width, heads, dtype=dtype, rngs=rngs)
        self.out = output_projection(width, heads, dtype=dtype, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, N, D] -> [B, N, D]; attention over N."""
        qkv = constrain(self.qkv(x), BATCH, TOKENS, QKV, HEADS, HEAD_SIZE)
        query, key, value = (qkv[:, :, i] for i in range(3))
        mixed = attend(query, key, value)
        return constrain(self.out(mixed), BATCH, TOKENS, STREAM)


def attend(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """softmax(q k^T / sqrt(K)) v for [B, N, H, K] each; the softmax and its sums in float32."""
    scaled = query * query.shape[-1] ** -0.5
    logits = jnp.einsum("bqhk,bshk->bhqs", scaled, key, preferred_element_type=jnp.float32)
    weights = jax.nn.softmax(logits, axis=-1).astype(value.dtype)
    return jnp.einsum("bhqs,bshk->bqhk", weights, value)


def input_projections(number: int, width: int, heads: int, *, dtype: Any, rngs: nnx.Rngs) -> Linear:
    """[..., D] -> [..., number, H, K]: of query, key and value those that see the same tokens."""
    return Linear(
        (width,),
        (number, heads, width // heads),
        (WIDTH,),
        (QKV, HEADS, HEAD_SIZE),
        kernel_init=_in_init,
        dtype=dtype,
        rngs=rngs,
    )


def output_projection(width: int, heads: int, *, dtype: Any, rngs: nnx.Rngs) -> Linear:
    """[..., H, K] -> [..., D]: the heads' results brought together."""
    return Linear(
        (heads, width // heads),
        (width,),
        (HEADS, HEAD_SIZE),
        (WIDTH,),
        kernel_init=_out_init,
        dtype=dtype,
        rngs=rngs,
    )


def _in_init(key: Any, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """Xavier for each of the [D, H * K] kernels by itself, as if they were separate."""
    width, number, heads, head_size = shape
    make = jax.vmap(lambda k: XAVIER(k, (width, heads * head_size), dtype), out_axes=1)
    return make(jax.random.split(key, number)).reshape(shape)


def _out_init(key: Any, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """Xavier for the kernel seen as [H * K, D]."""
    heads, head_size, width = shape
    return XAVIER(key, (heads * head_size, width), dtype).reshape(shape)
