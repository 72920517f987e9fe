"""XLA's programs of attention: whole, and in blocks of queries; names of what they keep."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from vit_jax.models.layers.linear import times
from vit_jax.models.layers.logits import LogitTransform

# Names of attention's arrays, for remat policies.
PROJECTED = "attention_projected"  # queries, keys and values
WEIGHTS = "attention_weights"  # of the whole program, N x N
MIXED = "attention_mixed"  # the values mixed by the weights
STATISTICS = "attention_statistics"  # a logarithm for each query, instead of the weights
BLOCK = 256  # queries at most


Transforms = tuple[LogitTransform, ...]


class Projected(NamedTuple):
    """The inputs of attention; query, key and value are [B, N, H, K]."""

    query: jax.Array
    key: jax.Array
    value: jax.Array
    # The three in one array, [B, N, 3, H, K], if one product gave them: a kernel may read it.
    qkv: jax.Array | None
    transforms: Transforms = ()  # act on the logits, one after the other

    def first(self, number: int) -> "Projected":
        """The same for the first `number` queries."""
        transforms = jax.tree.map(lambda x: x[..., :number, :], self.transforms)
        return self._replace(query=self.query[:, :number], qkv=None, transforms=transforms)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def attend(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    softmax_dtype: Any,
    transforms: Transforms = (),
) -> jax.Array:
    """softmax(transformed(q k^T / sqrt(K))) v for [B, N, H, K] each; [B, N, H, K].

    Its weights are not normalised: their sums, in float32, divide the mixed values, which are
    fewer. It has a custom backward pass, which keeps the weights once, in the dtype in which they
    multiplied `value`; JAX's would keep them in `softmax_dtype` too. They are the largest array
    that a block keeps (N x N for each head). Not for forward-mode differentiation.
    """
    return _forward(query, key, value, softmax_dtype, transforms)[0]


def normalised_weights(query: jax.Array, key: jax.Array, transforms: Transforms = ()) -> jax.Array:
    """The weights of `attend`, normalised and in float32: [B, H, N, N]."""
    logits = jnp.einsum("bqhk,bshk->bhqs", scaled(query), key, preferred_element_type=jnp.float32)
    for transform in transforms:
        logits = transform(logits)
    return jax.nn.softmax(logits)


def scaled(query: jax.Array) -> jax.Array:
    """Queries by 1 / sqrt(K)."""
    return times(query, query.shape[-1] ** -0.5)


def _forward(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    softmax_dtype: Any,
    transforms: Transforms,
) -> tuple[jax.Array, tuple[Any, ...]]:
    query = scaled(query)
    logits = jnp.einsum("bqhk,bshk->bhqs", query, key, preferred_element_type=softmax_dtype)
    backs = []
    for transform in transforms:
        logits, back = jax.vjp(LogitTransform.__call__, transform, logits)
        backs.append(jax.tree.map(lambda x: checkpoint_name(x, WEIGHTS), back))
    weights = jnp.exp(logits - jnp.max(logits, axis=-1, keepdims=True))
    sums = jnp.sum(weights, axis=-1, keepdims=True, dtype=jnp.float32)
    shares = checkpoint_name(1.0 / sums, WEIGHTS)
    weights = checkpoint_name(weights.astype(value.dtype), WEIGHTS)
    mixed = jnp.einsum("bhqs,bshk->bqhk", weights, value, preferred_element_type=jnp.float32)
    mixed = checkpoint_name((mixed * _by_query(shares)).astype(value.dtype), MIXED)
    return mixed, (query, key, value, weights, shares, backs)


def _by_query(x: jax.Array) -> jax.Array:
    """[B, H, N, 1] -> [B, N, H, 1]."""
    return jnp.swapaxes(x, 1, 2)


def _backward(
    softmax_dtype: Any, saved: tuple[Any, ...], dy: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, Transforms]:
    query, key, value, weights, shares, backs = saved
    dy = times(dy, _by_query(shares))
    d_value = jnp.einsum("bhqs,bqhk->bshk", weights, dy)
    d_weights = jnp.einsum("bqhk,bshk->bhqs", dy, value)
    # The softmax, over the last axis.
    y, dy = weights.astype(softmax_dtype), d_weights.astype(softmax_dtype)
    mean = jnp.sum(y * dy, axis=-1, keepdims=True) * shares
    d_logits = y * (dy - mean.astype(softmax_dtype))
    d_transforms = []
    for back in reversed(backs):
        d_transform, d_logits = back(d_logits)
        d_transforms.append(d_transform)
    d_logits = d_logits.astype(key.dtype)
    d_query = times(jnp.einsum("bhqs,bshk->bqhk", d_logits, key), key.shape[-1] ** -0.5)
    d_key = jnp.einsum("bhqs,bqhk->bshk", d_logits, query)
    return d_query, d_key, d_value, tuple(reversed(d_transforms))


attend.defvjp(_forward, _backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def attend_in_blocks(
    query: jax.Array, key: jax.Array, value: jax.Array, softmax_dtype: Any
) -> jax.Array:
    """`attend` in blocks of queries: exact, in memory that grows with N instead of N x N.

    Each block sees all keys, so its softmax is the plain one. Kept for the backward pass are the
    output and a logarithm for each query, from which the weights are computed again, block by block
    (arXiv 2205.14135, section 3.1).

    In memory beside its arguments and results: B x H x BLOCK x N numbers. Not for forward-mode
    differentiation.
    """
    return _forward_in_blocks(query, key, value, softmax_dtype)[0]


def _forward_in_blocks(
    query: jax.Array, key: jax.Array, value: jax.Array, softmax_dtype: Any
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    query = scaled(query)

    def rows(block: jax.Array) -> tuple[jax.Array, jax.Array]:
        logits = jnp.einsum("bqhk,bshk->bhqs", block, key, preferred_element_type=softmax_dtype)
        greatest = jnp.max(logits, axis=-1, keepdims=True)
        powers = jnp.exp(logits - greatest)
        total = jnp.sum(powers, axis=-1, keepdims=True, dtype=jnp.float32)
        weights = (powers / total).astype(value.dtype)
        statistic = (greatest.astype(jnp.float32) + jnp.log(total))[..., 0]
        return jnp.einsum("bhqs,bshk->bqhk", weights, value), statistic.swapaxes(1, 2)

    mixed, statistics = jax.lax.map(rows, _blocks(query))
    mixed = checkpoint_name(_whole(mixed, query.shape[1]), MIXED)
    statistics = checkpoint_name(_whole(statistics, query.shape[1]), STATISTICS)
    return mixed, (query, key, value, mixed, statistics)


def _backward_in_blocks(
    softmax_dtype: Any, saved: tuple[jax.Array, ...], dy: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    query, key, value, mixed, statistics = saved
    # sum over keys of weight x its gradient, from the output instead (arXiv 2205.14135, section 3).
    shared = jnp.sum(dy.astype(jnp.float32) * mixed.astype(jnp.float32), axis=-1)

    def rows(sums: tuple[jax.Array, jax.Array], each: Any) -> tuple[Any, jax.Array]:
        block, dy, statistic, shared = each
        statistic, shared = (x.swapaxes(1, 2)[..., None] for x in (statistic, shared))
        logits = jnp.einsum("bqhk,bshk->bhqs", block, key, preferred_element_type=softmax_dtype)
        weights = jnp.exp(logits - statistic).astype(softmax_dtype)
        d_weights = jnp.einsum("bqhk,bshk->bhqs", dy, value, preferred_element_type=softmax_dtype)
        d_logits = (weights * (d_weights - shared)).astype(key.dtype)
        weights = weights.astype(value.dtype)
        add = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
        d_key = sums[0] + add("bhqs,bqhk->bshk", d_logits, block)
        d_value = sums[1] + add("bhqs,bqhk->bshk", weights, dy)
        return (d_key, d_value), jnp.einsum("bhqs,bshk->bqhk", d_logits, key)

    zeros = jnp.zeros(key.shape, jnp.float32)
    each = tuple(map(_blocks, (query, dy, statistics, shared)))
    (d_key, d_value), d_query = jax.lax.scan(rows, (zeros, zeros), each)
    d_query = times(_whole(d_query, key.shape[1]), key.shape[-1] ** -0.5)
    return d_query, d_key.astype(key.dtype), d_value.astype(value.dtype)


attend_in_blocks.defvjp(_forward_in_blocks, _backward_in_blocks)


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
