"""Attention in blocks of queries: exact, in memory that grows with N instead of N x N.

Each block of queries sees all keys, so its softmax is the plain one. Kept for the backward pass are
the output and a logarithm for each query, from which the weights are computed again, block by block
(arXiv 2205.14135, section 3.1).
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from vit_jax.nn.kernels.saved import MIXED, STATISTICS
from vit_jax.nn.linear import times

BLOCK = 256  # queries at most


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def attend(query: jax.Array, key: jax.Array, value: jax.Array, softmax_dtype: Any) -> jax.Array:
    """softmax(q k^T / sqrt(K)) v for [B, N, H, K] each; [B, N, H, K].

    In memory beside its arguments and results: B x H x BLOCK x N numbers. Not for forward-mode
    differentiation.
    """
    return _forward(query, key, value, softmax_dtype)[0]


def _forward(
    query: jax.Array, key: jax.Array, value: jax.Array, softmax_dtype: Any
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    scaled = times(query, query.shape[-1] ** -0.5)

    def rows(block: jax.Array) -> tuple[jax.Array, jax.Array]:
        logits = jnp.einsum("bqhk,bshk->bhqs", block, key, preferred_element_type=softmax_dtype)
        greatest = jnp.max(logits, axis=-1, keepdims=True)
        powers = jnp.exp(logits - greatest)
        total = jnp.sum(powers, axis=-1, keepdims=True)
        weights = (powers / total).astype(value.dtype)
        statistic = (greatest + jnp.log(total)).astype(jnp.float32)[..., 0]
        return jnp.einsum("bhqs,bshk->bqhk", weights, value), statistic.swapaxes(1, 2)

    mixed, statistics = jax.lax.map(rows, _blocks(scaled))
    mixed = checkpoint_name(_whole(mixed, query.shape[1]), MIXED)
    statistics = checkpoint_name(_whole(statistics, query.shape[1]), STATISTICS)
    return mixed, (scaled, key, value, mixed, statistics)


def _backward(
    softmax_dtype: Any, saved: tuple[jax.Array, ...], dy: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    scaled, key, value, mixed, statistics = saved
    # sum over keys of weight x its gradient, from the output instead (arXiv 2205.14135, section 3).
    shared = jnp.sum(dy.astype(jnp.float32) * mixed.astype(jnp.float32), axis=-1)

    def rows(sums: tuple[jax.Array, jax.Array], each: Any) -> tuple[Any, jax.Array]:
        block, dy, statistic, shared = each
        column = lambda x: x.swapaxes(1, 2)[..., None]
        logits = jnp.einsum("bqhk,bshk->bhqs", block, key, preferred_element_type=softmax_dtype)
        weights = jnp.exp(logits - column(statistic)).astype(softmax_dtype)
        d_weights = jnp.einsum("bqhk,bshk->bhqs", dy, value, preferred_element_type=softmax_dtype)
        d_logits = (weights * (d_weights - column(shared))).astype(key.dtype)
        weights = weights.astype(value.dtype)
        add = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
        d_key = sums[0] + add("bhqs,bqhk->bshk", d_logits, block)
        d_value = sums[1] + add("bhqs,bqhk->bshk", weights, dy)
        return (d_key, d_value), jnp.einsum("bhqs,bshk->bqhk", d_logits, key)

    zeros = jnp.zeros(key.shape, jnp.float32)
    each = tuple(map(_blocks, (scaled, dy, statistics, shared)))
    (d_key, d_value), d_query = jax.lax.scan(rows, (zeros, zeros), each)
    d_query = times(_whole(d_query, key.shape[1]), key.shape[-1] ** -0.5)
    return d_query, d_key.astype(key.dtype), d_value.astype(value.dtype)


attend.defvjp(_forward, _backward)


def _blocks(x: jax.Array) -> jax.Array:
    """[B, N, ...] -> [blocks, B, at most BLOCK, ...], the last ones padded with zeros."""
    number = -(-x.shape[1] // BLOCK)
    size = -(-x.shape[1] // number)
    x = jnp.pad(x, [(0, 0), (0, number * size - x.shape[1])] + [(0, 0)] * (x.ndim - 2))
    return x.reshape(x.shape[0], number, size, *x.shape[2:]).swapaxes(0, 1)


def _whole(blocks: jax.Array, length: int) -> jax.Array:
    """The reverse of `_blocks`."""
    x = blocks.swapaxes(0, 1)
    return x.reshape(x.shape[0], -1, *x.shape[3:])[:, :length]
