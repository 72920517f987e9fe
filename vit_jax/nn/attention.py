"""Multi-head self-attention (appendix A)."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from vit_jax.core.axes import BATCH, HEAD_SIZE, HEADS, QKV, STREAM, TOKENS, WIDTH, constrain
from vit_jax.nn.block_spec import BlockSpec
from vit_jax.nn.initialization import ZEROS
from vit_jax.nn.kernels import blockwise, choice
from vit_jax.nn.kernels.saved import MIXED, PROJECTED, WEIGHTS
from vit_jax.nn.linear import Initializer, Linear, param, times
from vit_jax.nn.norm import norm
from vit_jax.nn.posemb import Positions


class SelfAttention(nnx.Module):
    """Self-attention with query, key and value from one product; no dropout on the weights.

    `qk_norm` adds a norm without bias over each head's query and key (arXiv 2302.05442,
    section 2).
    """

    def __init__(self, spec: BlockSpec, *, rngs: nnx.Rngs):
        self.qkv = input_projections(3, spec, bias=spec.qkv_bias == "all", rngs=rngs)
        self.out = output_projection(spec, bias=spec.dense_bias, rngs=rngs)
        self.precision, self.kernel = spec.precision, spec.attention
        self.qkv_bias, self.qk_norm = spec.qkv_bias, spec.qk_norm
        head_size = spec.width // spec.num_heads
        if spec.qkv_bias == "query_value":
            shape, axes = (spec.num_heads, head_size), (HEADS, HEAD_SIZE)
            self.query_bias = param(ZEROS, shape, axes, rngs.params())
            self.value_bias = param(ZEROS, shape, axes, rngs.params())
        if spec.qk_norm:
            kind = "rms" if spec.norm == "rms" else "layer_no_bias"
            shared: Any = {
                "epsilon": spec.norm_epsilon, "precision": spec.precision, "rngs": rngs
            }  # fmt: skip
            self.query_norm = norm(kind, head_size, HEAD_SIZE, **shared)
            self.key_norm = norm(kind, head_size, HEAD_SIZE, **shared)

    def __call__(
        self,
        x: jax.Array,
        positions: Positions | None = None,
        results: int | None = None,
        offset: jax.Array | None = None,
    ) -> jax.Array:
        """[B, N, D] -> [B, N, D]; attention over N.

        Args:
          x: tokens.
          positions: a position embedding that acts inside attention.
          results: compute the first tokens alone, so many.
          offset: [B, H, N, N], added to the normalised weights. The gradient by zeros here is the
            gradient by the weights, whatever program computes them; not with `results`.
        """
        qkv, query, key, value, bias = self._projected(x, positions)
        if results is not None:
            # A few queries are cheap by any program; one that was asked for is checked still.
            choice.choose(self.kernel, query, self.precision.softmax, biased=bias is not None)
            bias = None if bias is None else bias[:, :, :results]
            mixed = attend(query[:, :results], key, value, self.precision.softmax, bias)
            return constrain(self.out(mixed), BATCH, TOKENS, STREAM)
        changed = positions is not None or self.qk_norm or self.qkv_bias == "query_value"
        mixed = self._mix(query, key, value, bias, None if changed else qkv)
        if offset is not None:
            mixed = mixed + jnp.einsum("bhqs,bshk->bqhk", offset.astype(value.dtype), value)
        return constrain(self.out(mixed), BATCH, TOKENS, STREAM)

    def weights(self, x: jax.Array, positions: Positions | None = None) -> jax.Array:
        """[B, N, D] -> [B, H, N, N] float32: how much each token takes from each; rows sum to 1."""
        _, query, key, _, bias = self._projected(x, positions)
        return normalised_weights(query, key, bias)

    def _projected(
        self, x: jax.Array, positions: Positions | None
    ) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array | None]:
        """[B, N, D] -> what one product gave, [B, N, 3, H, K]; query, key, value; their bias."""
        qkv = constrain(self.qkv(x), BATCH, TOKENS, QKV, HEADS, HEAD_SIZE)
        qkv = checkpoint_name(qkv, PROJECTED)
        query, key, value = (qkv[:, :, i] for i in range(3))
        if self.qkv_bias == "query_value":
            query = query + self.query_bias[...].astype(query.dtype)
            value = value + self.value_bias[...].astype(value.dtype)
        if self.qk_norm:
            query, key = self.query_norm(query), self.key_norm(key)
        bias = None
        if positions is not None:
            query, key = positions.rotate(query), positions.rotate(key)
            bias = positions.bias(_scaled(query))
        return qkv, query, key, value, bias

    def _mix(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        bias: jax.Array | None,
        qkv: jax.Array | None,
    ) -> jax.Array:
        """`attend`, by the kernel of the field `attention`; qkv: the three, if they are in one."""
        softmax = self.precision.softmax
        kernel = choice.choose(self.kernel, query, softmax, biased=bias is not None)
        joint = None if qkv is None else choice.joint_program(kernel, qkv.shape[1])
        if qkv is not None and joint is not None:
            return joint(qkv)
        if kernel != choice.XLA:
            return choice.program(kernel)(query, key, value)
        if bias is None and query.shape[1] >= choice.LONG:
            return blockwise.attend(query, key, value, softmax)
        return attend(query, key, value, softmax, bias)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def attend(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    softmax_dtype: Any,
    bias: jax.Array | None = None,
) -> jax.Array:
    """softmax(q k^T / sqrt(K) + bias) v for [B, N, H, K] each and [B, H, N, N]; [B, N, H, K].

    Its weights are not normalised: their sums, in float32, divide the mixed values, which are
    fewer. It has a custom backward pass, which keeps the weights once, in the dtype in which they
    multiplied `value`; JAX's would keep them in `softmax_dtype` too. They are the largest array
    that a block keeps (N x N for each head). Not for forward-mode differentiation.
    """
    return _forward(query, key, value, softmax_dtype, bias)[0]


def normalised_weights(
    query: jax.Array, key: jax.Array, bias: jax.Array | None = None
) -> jax.Array:
    """softmax(q k^T / sqrt(K) + bias), the weights of `attend` in float32: [B, H, N, N]."""
    logits = jnp.einsum("bqhk,bshk->bhqs", _scaled(query), key, preferred_element_type=jnp.float32)
    logits = logits if bias is None else logits + bias.astype(jnp.float32)
    return jax.nn.softmax(logits)


def _scaled(query: jax.Array) -> jax.Array:
    return times(query, query.shape[-1] ** -0.5)


def _forward(
    query: jax.Array, key: jax.Array, value: jax.Array, softmax_dtype: Any, bias: jax.Array | None
) -> tuple[jax.Array, tuple[Any, ...]]:
    scaled = _scaled(query)
    logits = jnp.einsum("bqhk,bshk->bhqs", scaled, key, preferred_element_type=softmax_dtype)
    if bias is not None:
        logits = logits + bias.astype(softmax_dtype)
    weights = jnp.exp(logits - jnp.max(logits, axis=-1, keepdims=True))
    sums = jnp.sum(weights, axis=-1, keepdims=True, dtype=jnp.float32)
    shares = checkpoint_name(1.0 / sums, WEIGHTS)
    weights = checkpoint_name(weights.astype(value.dtype), WEIGHTS)
    mixed = jnp.einsum("bhqs,bshk->bqhk", weights, value, preferred_element_type=jnp.float32)
    mixed = checkpoint_name((mixed * _by_query(shares)).astype(value.dtype), MIXED)
    # Only the dtype of the bias is kept, if there is one.
    like_bias = None if bias is None else jnp.zeros((), bias.dtype)
    return mixed, (scaled, key, value, weights, shares, like_bias)


def _by_query(x: jax.Array) -> jax.Array:
    """[B, H, N, 1] -> [B, N, H, 1]."""
    return jnp.swapaxes(x, 1, 2)


def _backward(
    softmax_dtype: Any, saved: tuple[Any, ...], dy: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array | None]:
    scaled, key, value, weights, shares, like_bias = saved
    dy = times(dy, _by_query(shares))
    d_value = jnp.einsum("bhqs,bqhk->bshk", weights, dy)
    d_weights = jnp.einsum("bqhk,bshk->bhqs", dy, value)
    # The softmax, over the last axis.
    y, dy = weights.astype(softmax_dtype), d_weights.astype(softmax_dtype)
    mean = jnp.sum(y * dy, axis=-1, keepdims=True) * shares
    d_logits = y * (dy - mean.astype(softmax_dtype))
    d_bias = None if like_bias is None else d_logits.astype(like_bias.dtype)
    d_logits = d_logits.astype(key.dtype)
    d_query = times(jnp.einsum("bhqs,bshk->bqhk", d_logits, key), key.shape[-1] ** -0.5)
    d_key = jnp.einsum("bhqs,bqhk->bshk", d_logits, scaled)
    return d_query, d_key, d_value, d_bias


attend.defvjp(_forward, _backward)


def input_projections(number: int, spec: BlockSpec, *, bias: bool = True, rngs: nnx.Rngs) -> Linear:
    """[..., D] -> [..., number, H, K]: the queries, keys and values computed from the same tokens.

    Each of the `number` kernels is initialised separately, as a [D, D].
    """
    return Linear(
        (spec.width,),
        (number, spec.num_heads, spec.width // spec.num_heads),
        (WIDTH,),
        (QKV, HEADS, HEAD_SIZE),
        kernel_init=functools.partial(_in_init, spec.start.kernel),
        bias=bias,
        precision=spec.precision,
        rngs=rngs,
    )


def output_projection(spec: BlockSpec, *, bias: bool = True, rngs: nnx.Rngs) -> Linear:
    """[..., H, K] -> [..., D]: the heads' outputs combined."""
    return Linear(
        (spec.num_heads, spec.width // spec.num_heads),
        (spec.width,),
        (HEADS, HEAD_SIZE),
        (WIDTH,),
        kernel_init=functools.partial(_out_init, spec.start.kernel),
        bias=bias,
        precision=spec.precision,
        rngs=rngs,
    )


def _in_init(init: Initializer, key: Any, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """`init` applied to each of the [D, H * K] kernels separately."""
    width, number, num_heads, head_size = shape
    make = jax.vmap(lambda k: init(k, (width, num_heads * head_size), dtype), out_axes=1)
    return make(jax.random.split(key, number)).reshape(shape)


def _out_init(init: Initializer, key: Any, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """`init` applied to the kernel reshaped to [H * K, D]."""
    num_heads, head_size, width = shape
    return init(key, (num_heads * head_size, width), dtype).reshape(shape)
