"""Attention on TPUs by one Pallas kernel each way, from arrays as they lie in memory.

XLA's own program writes the weights (N x N) to memory, and copies queries, keys and values from one
layout to another. For [B, N, H, K] it prefers N to be the axis of a register's lanes, since K is
shorter than these, and so does this kernel: an instance takes some heads of one image as [K, N].
The weights stay on the chip, as keys by queries: a softmax is then over sublanes, and no matrix of
this size is transposed. The backward pass computes them again, so nothing is kept for it besides
queries, keys and values; rows are whole, so a softmax needs no running sums.

Long sequences are cut into blocks of queries, each of which sees all keys.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from vit_jax.core.axes import BATCH, HEAD_SIZE, HEADS, TOKENS, per_device, target
from vit_jax.nn.kernels.saved import MIXED

LANES = 128
MOST_QUERIES = 640  # without blocks: a float32 matrix of 640 x 640 takes 1.6 MB of the chip's VMEM
BLOCKS = (512, 384, 256)  # queries of a block where there are more
WEIGHTS_OF_AN_INSTANCE = 2**19  # which decides how many heads it takes, to outweigh its start
# What is reserved, XLA cannot use for arrays around the kernel; 16 MiB is its own default on a v5e.
LEAST_VMEM, MOST_VMEM = 16 * 2**20, 96 * 2**20

_AXES = (BATCH, TOKENS, HEADS, HEAD_SIZE)
# Contracted axes of products of two matrices: x y^T, x y, x^T y.
_XYT, _XY, _XTY = ((((i,), (j,)), ((), ())) for i, j in ((1, 1), (1, 0), (0, 0)))
_dot = functools.partial(jax.lax.dot_general, preferred_element_type=jnp.float32)


@jax.custom_vjp
def attend(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """softmax(q k^T / sqrt(K)) v for [B, N, H, K] each; [B, N, H, K].

    Softmax and sums are computed in float32. Elsewhere than on a TPU Pallas interprets the kernel,
    which is slow. Not for forward-mode differentiation.
    """
    return _forward(query, key, value)[0]


def _forward(
    query: jax.Array, key: jax.Array, value: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    (mixed,) = _call(_mix, (query,), (key, value), products=2, results=(1, 0))
    return checkpoint_name(mixed, MIXED), (query, key, value)


def _backward(saved: tuple[jax.Array, ...], dy: jax.Array) -> tuple[jax.Array, ...]:
    query, key, value = saved
    return _call(_pull_back, (query, dy), (key, value), products=5, results=(1, 2))


attend.defvjp(_forward, _backward)


def _mix(q_ref: Any, k_ref: Any, v_ref: Any, y_ref: Any, *, num_queries: int) -> None:
    """The forward pass of a block of queries: references [1, heads, K, queries or keys]."""
    del num_queries  # what is computed for queries behind the last is not written
    for head in range(q_ref.shape[1]):
        v = v_ref[0, head]
        powers, total = _powers(_scaled(q_ref[0, head]), k_ref[0, head])
        y_ref[0, head] = (_dot(v, powers.astype(v.dtype), _XY) * (1 / total)).astype(y_ref.dtype)


def _pull_back(
    q_ref: Any, dy_ref: Any, k_ref: Any, v_ref: Any, dq_ref: Any, dk_ref: Any, dv_ref: Any,
    *sums: Any, num_queries: int,
) -> None:  # fmt: skip
    """The backward pass likewise.

    sums: [heads, K, N] float32 for dk and for dv, if there are several blocks of queries.
    num_queries: of the image.
    """
    first = pl.program_id(2) * q_ref.shape[3]
    for head in range(q_ref.shape[1]):
        k, v = k_ref[0, head], v_ref[0, head]
        q, dy = q_ref[0, head], dy_ref[0, head]
        if num_queries % q_ref.shape[3]:  # what lies behind the array may be anything, also NaN
            there = first + jax.lax.broadcasted_iota(jnp.int32, q.shape, 1) < num_queries
            q, dy = (jnp.where(there, x, jnp.zeros_like(x)) for x in (q, dy))
        q = _scaled(q)
        powers, total = _powers(q, k)
        weights = powers * (1 / total)
        d_weights = _dot(v, dy, _XTY)
        d_logits = weights * (d_weights - jnp.sum(weights * d_weights, axis=0, keepdims=True))
        d_logits = d_logits.astype(k.dtype)
        dq_ref[0, head] = _scaled(_dot(k, d_logits, _XY)).astype(dq_ref.dtype)
        _add(head, _dot(q, d_logits, _XYT), dk_ref, sums[:1])
        _add(head, _dot(dy, weights.astype(dy.dtype), _XYT), dv_ref, sums[1:])


def _powers(scaled: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Exponentials of the logits, [keys, queries], and their sums over keys."""
    logits = _dot(key, scaled, _XTY)
    powers = jnp.exp(logits - jnp.max(logits, axis=0, keepdims=True))
    return powers, jnp.sum(powers, axis=0, keepdims=True)


def _scaled(x: jax.Array) -> jax.Array:
    return (x.astype(jnp.float32) * x.shape[0] ** -0.5).astype(x.dtype)


def _add(head: int, part: jax.Array, result: Any, sums: Any) -> None:
    """Adds a block's part to its sum, which is written after the last block."""
    if not sums:
        result[0, head] = part.astype(result.dtype)
        return
    (total,) = sums
    block = pl.program_id(2)
    total[head] = part + jnp.where(block == 0, jnp.zeros_like(part), total[head])

    @pl.when(block == pl.num_programs(2) - 1)
    def _() -> None:
        result[0, head] = total[head].astype(result.dtype)


def _call(
    kernel: Callable[..., None],
    of_queries: tuple[jax.Array, ...],
    of_keys: tuple[jax.Array, ...],
    *,
    products: int,
    results: tuple[int, int],
) -> tuple[jax.Array, ...]:
    """Runs a kernel on each device's images and heads, for arrays [B, N, H, K].

    products: of N x N x K, for the compiler's estimate. results: how many are of queries and of
    keys.
    """
    arrays = (*of_queries, *of_keys)

    def local(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        lying = [x.transpose(0, 2, 3, 1) for x in arrays]
        done = _pallas_call(kernel, lying, len(of_queries), products, results)
        return tuple(x.transpose(0, 3, 1, 2) for x in done)

    return per_device(local, [_AXES] * len(arrays), [_AXES] * sum(results), *arrays)


def _pallas_call(
    kernel: Callable[..., None],
    lying: list[jax.Array],
    num_of_queries: int,
    products: int,
    results: tuple[int, int],
) -> Any:
    """The kernel for arrays [B, H, K, N], those of queries first."""
    batch, num_heads, head_size, tokens = lying[0].shape
    heads, queries = heads_of(num_heads, tokens), queries_of(tokens)
    blocks = math.ceil(tokens / queries)
    shape = lambda columns: (1, heads, head_size, columns)
    of_queries = pl.BlockSpec(shape(queries), lambda image, part, block: (image, part, 0, block))
    of_keys = pl.BlockSpec(shape(tokens), lambda image, part, block: (image, part, 0, 0))
    specs = lambda a, b: [of_queries] * a + [of_keys] * b
    sums = pltpu.VMEM((heads, head_size, tokens), jnp.float32)
    weights = batch * num_heads * tokens * tokens
    return pl.pallas_call(
        functools.partial(kernel, num_queries=tokens),
        grid=(batch, num_heads // heads, blocks),
        in_specs=specs(num_of_queries, len(lying) - num_of_queries),
        out_specs=specs(*results),
        out_shape=[jax.ShapeDtypeStruct(lying[0].shape, lying[0].dtype)] * sum(results),
        scratch_shapes=[sums] * (results[1] if blocks > 1 else 0),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary"),
            vmem_limit_bytes=vmem_bytes(heads * head_size, tokens, queries),
        ),
        cost_estimate=pl.CostEstimate(
            flops=2 * products * weights * head_size,
            bytes_accessed=(len(lying) + sum(results)) * lying[0].size * lying[0].dtype.itemsize,
            transcendentals=weights,
        ),
        interpret=target().platform != "tpu",
        name=f"attention{kernel.__name__}",
    )(*lying)


def heads_of(num_heads: int, tokens: int) -> int:
    """The heads of one instance: a divisor of their number."""
    most = max(1, min(8, WEIGHTS_OF_AN_INSTANCE // tokens**2))
    return max(n for n in range(1, most + 1) if num_heads % n == 0)


def queries_of(tokens: int) -> int:
    """The queries of one block: all, or whole lanes with few left over."""
    if tokens <= MOST_QUERIES:
        return tokens
    return min(BLOCKS, key=lambda queries: math.ceil(tokens / queries) * queries)


def vmem_bytes(columns: int, tokens: int, queries: int) -> int:
    """Bytes on the chip for an instance: matrices of weights, arrays (each twice) and sums."""
    keys, queries = (LANES * math.ceil(n / LANES) for n in (tokens, queries))
    needed = 4 * (6 * keys * queries + columns * (6 * keys + 4 * queries))
    return min(max(LEAST_VMEM, needed), MOST_VMEM)
