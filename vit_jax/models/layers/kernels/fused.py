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

from vit_jax.core.axes import BATCH, HEAD_SIZE, HEADS, QKV, TOKENS, per_device, target
from vit_jax.models.layers.kernels.xla import MIXED

LANES = 128  # of a register of a TPU
MOST_QUERIES = 640  # without blocks: a float32 matrix of 640 x 640 takes 1.6 MB of the chip's VMEM
BLOCKS = (512, 384, 256)  # queries of a block where there are more
# Remat policies keep the mixed values from this many tokens on. Of fewer it takes longer to write
# and to read them, in a layout that no product likes, than to mix again (docs/benchmarks.md).
LEAST_KEPT = 256
WEIGHTS_OF_AN_INSTANCE = 2**19  # which decides how many heads it takes, to outweigh its start
# What is reserved, XLA cannot use for arrays around the kernel; 16 MiB is its own default on a v5e.
LEAST_VMEM, MOST_VMEM = 16 * 2**20, 96 * 2**20

# Kinds of arrays: [B, N, H, K] of queries and of keys, and [B, N, 3, H, K] of both and values.
OF_QUERIES, OF_KEYS, JOINT = "queries", "keys", "joint"
_AXES = (BATCH, TOKENS, HEADS, HEAD_SIZE)
_JOINT_AXES = (BATCH, TOKENS, QKV, HEADS, HEAD_SIZE)
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
    arrays = [(query, OF_QUERIES), (key, OF_KEYS), (value, OF_KEYS)]
    (mixed,) = _call(_mix, arrays, [OF_QUERIES], products=2)
    return checkpoint_name(mixed, MIXED), (query, key, value)


def _backward(saved: tuple[jax.Array, ...], dy: jax.Array) -> tuple[jax.Array, ...]:
    query, key, value = saved
    arrays = [(query, OF_QUERIES), (dy, OF_QUERIES), (key, OF_KEYS), (value, OF_KEYS)]
    return _call(_pull_back, arrays, [OF_QUERIES, OF_KEYS, OF_KEYS], products=5)


attend.defvjp(_forward, _backward)


@jax.custom_vjp
def attend_joint(qkv: jax.Array) -> jax.Array:
    """`attend` for queries, keys and values in one array, [B, N, 3, H, K]: it is not divided.

    For sequences that need no blocks: queries_of(N) == N.
    """
    return _joint_forward(qkv)[0]


def _joint_forward(qkv: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    (mixed,) = _call(_mix_joint, [(qkv, JOINT)], [OF_QUERIES], products=2)
    kept = qkv.shape[1] >= LEAST_KEPT
    return checkpoint_name(mixed, MIXED) if kept else mixed, (qkv,)


def _joint_backward(saved: tuple[jax.Array, ...], dy: jax.Array) -> tuple[jax.Array, ...]:
    (qkv,) = saved
    return _call(_pull_back_joint, [(qkv, JOINT), (dy, OF_QUERIES)], [JOINT], products=5)


attend_joint.defvjp(_joint_forward, _joint_backward)


def _mix_joint(qkv_ref: Any, y_ref: Any, *, num_queries: int) -> None:
    query, key, value = _parts(qkv_ref)
    _mix(query, key, value, y_ref, num_queries=num_queries)


def _pull_back_joint(qkv_ref: Any, dy_ref: Any, d_ref: Any, *, num_queries: int) -> None:
    query, key, value = _parts(qkv_ref)
    _pull_back(query, dy_ref, key, value, *_parts(d_ref), num_queries=num_queries)


def _parts(ref: Any) -> list[Any]:
    """[1, 3, heads, K, N] -> three references [1, heads, K, N]."""
    return [ref.at[:, i] for i in range(3)]


def _mix(q_ref: Any, k_ref: Any, v_ref: Any, y_ref: Any, *, num_queries: int) -> None:
    """The forward pass of a block of queries: references [1, heads, K, queries or keys]."""
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
    arrays: list[tuple[jax.Array, str]],
    results: list[str],
    *,
    products: int,
) -> tuple[jax.Array, ...]:
    """Runs a kernel on each device's images and heads.

    arrays, results: with their kinds. products: of N x N x K, for the compiler's estimate.
    """
    values, kinds = zip(*arrays, strict=True)
    axes = lambda kinds: [_JOINT_AXES if kind == JOINT else _AXES for kind in kinds]

    def local(*values: jax.Array) -> tuple[jax.Array, ...]:
        lying = [jnp.moveaxis(x, 1, -1) for x in values]
        done = _pallas_call(kernel, lying, kinds, results, products)
        return tuple(jnp.moveaxis(x, -1, 1) for x in done)

    return per_device(local, axes(kinds), axes(results), *values)


def _pallas_call(
    kernel: Callable[..., None],
    lying: list[jax.Array],
    kinds: tuple[str, ...],
    results: list[str],
    products: int,
) -> Any:
    """The kernel for arrays [B, H, K, N] and [B, 3, H, K, N]."""
    batch, *_, num_heads, head_size, tokens = lying[0].shape
    heads, queries = heads_of(num_heads, tokens), queries_of(tokens)
    blocks = math.ceil(tokens / queries)
    of_part = lambda columns, block: pl.BlockSpec((1, heads, head_size, columns), block)
    specs = {
        OF_QUERIES: of_part(queries, lambda image, part, block: (image, part, 0, block)),
        OF_KEYS: of_part(tokens, lambda image, part, block: (image, part, 0, 0)),
        JOINT: pl.BlockSpec(
            (1, 3, heads, head_size, tokens), lambda image, part, block: (image, 0, part, 0, 0)
        ),
    }
    whole = (num_heads, head_size, tokens)
    shape = lambda kind: (batch, 3, *whole) if kind == JOINT else (batch, *whole)
    made: list[Any] = [jax.ShapeDtypeStruct(shape(kind), lying[0].dtype) for kind in results]
    sums = pltpu.VMEM((heads, head_size, tokens), jnp.float32)
    weights = batch * num_heads * tokens * tokens
    return pl.pallas_call(
        functools.partial(kernel, num_queries=tokens),
        grid=(batch, num_heads // heads, blocks),
        in_specs=[specs[kind] for kind in kinds],
        out_specs=[specs[kind] for kind in results],
        out_shape=made,
        scratch_shapes=[sums] * (results.count(OF_KEYS) if blocks > 1 else 0),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary"),
            # Reads a layer's part of what a loop has kept in place, instead of from a copy.
            allow_input_fusion=[True] * len(lying),
            vmem_limit_bytes=vmem_bytes(heads * head_size, tokens, queries),
        ),
        cost_estimate=pl.CostEstimate(
            flops=2 * products * weights * head_size,
            bytes_accessed=sum(x.size * x.dtype.itemsize for x in (*lying, *made)),
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
