"""Multi-head self-attention (appendix A)."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
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
from vit_jax.nn.precision import Precision

XAVIER = initializers.xavier_uniform()

# Names of arrays, for remat policies.
PROJECTED, WEIGHTS, MIXED = "attention_projected", "attention_weights", "attention_mixed"


class SelfAttention(nnx.Module):
    """Query, key and value from one product; no dropout on the weights."""

    def __init__(self, width: int, heads: int, *, precision: Precision, rngs: nnx.Rngs):
        self.qkv = input_projections(3, width, heads, precision=precision, rngs=rngs)
        self.out = output_projection(width, heads, precision=precision, rngs=rngs)
        self.precision = precision

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, N, D] -> [B, N, D]; attention over N."""
        qkv = constrain(self.qkv(x), BATCH, TOKENS, QKV, HEADS, HEAD_SIZE)
        qkv = checkpoint_name(qkv, PROJECTED)
        query, key, value = (qkv[:, :, i] for i in range(3))
        mixed = attend(query, key, value, self.precision.softmax)
        return constrain(self.out(mixed), BATCH, TOKENS, STREAM)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def attend(query: jax.Array, key: jax.Array, value: jax.Array, softmax_dtype: Any) -> jax.Array:
    """softmax(q k^T / sqrt(K)) v for [B, N, H, K] each; [B, N, H, K].

    With a backward pass of its own, which finds the weights in memory once, as `value` was
    multiplied by them; JAX's would keep them in `softmax_dtype` too. Of all that a block keeps they
    are the largest (N x N for each head). Not for forward-mode differentiation.
    """
    return _forward(query, key, value, softmax_dtype)[0]


def _forward(
    query: jax.Array, key: jax.Array, value: jax.Array, softmax_dtype: Any
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    scaled = query * query.shape[-1] ** -0.5
    logits = jnp.einsum("bqhk,bshk->bhqs", scaled, key, preferred_element_type=softmax_dtype)
    weights = checkpoint_name(jax.nn.softmax(logits, axis=-1).astype(value.dtype), WEIGHTS)
    mixed = checkpoint_name(jnp.einsum("bhqs,bshk->bqhk", weights, value), MIXED)
    return mixed, (scaled, key, value, weights)


def _backward(
    softmax_dtype: Any, saved: tuple[jax.Array, ...], dy: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    scaled, key, value, weights = saved
    d_value = jnp.einsum("bhqs,bqhk->bshk", weights, dy)
    d_weights = jnp.einsum("bqhk,bshk->bhqs", dy, value)
    d_logits = _softmax_backward(weights.astype(softmax_dtype), d_weights.astype(softmax_dtype))
    d_logits = d_logits.astype(key.dtype)
    d_query = jnp.einsum("bhqs,bshk->bqhk", d_logits, key) * key.shape[-1] ** -0.5
    d_key = jnp.einsum("bhqs,bqhk->bshk", d_logits, scaled)
    return d_query, d_key, d_value


def _softmax_backward(y: jax.Array, dy: jax.Array) -> jax.Array:
    """The gradient of softmax's argument, by softmax's result and its gradient; last axis."""
    return y * (dy - jnp.sum(y * dy, axis=-1, keepdims=True))


attend.defvjp(_forward, _backward)


def input_projections(
    number: int, width: int, heads: int, *, precision: Precision, rngs: nnx.Rngs
) -> Linear:
    """[..., D] -> [..., number, H, K]: of query, key and value those that see the same tokens."""
    return Linear(
        (width,),
        (number, heads, width // heads),
        (WIDTH,),
        (QKV, HEADS, HEAD_SIZE),
        kernel_init=_in_init,
        precision=precision,
        rngs=rngs,
    )


def output_projection(width: int, heads: int, *, precision: Precision, rngs: nnx.Rngs) -> Linear:
    """[..., H, K] -> [..., D]: the heads' results brought together."""
    return Linear(
        (heads, width // heads),
        (width,),
        (HEADS, HEAD_SIZE),
        (WIDTH,),
        kernel_init=_out_init,
        precision=precision,
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
