"""Attention on NVIDIA GPUs by cuDNN, through JAX."""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
from jax._src.cudnn import fused_attention_stablehlo
from jax.ad_checkpoint import checkpoint_name

from vit_jax.models.layers.kernels.xla import MIXED, STATISTICS

MULTIPLE = 8  # tokens and head sizes are padded to these; gradients are for even lengths only
VERSION = 91000  # of the cuDNN that programs for absent devices are compiled for


def attend(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """softmax(q k^T / sqrt(K)) v for bfloat16 [B, N, H, K] each; [B, N, H, K].

    The softmax is computed in float32; its output and a logarithm for each query are kept for the
    backward pass. Lengths and head sizes are padded with zeros, and added keys masked. Not for
    forward-mode differentiation.
    """
    _, tokens, _, head_size = query.shape
    more = [(0, 0), (0, -tokens % MULTIPLE), (0, 0), (0, -head_size % MULTIPLE)]
    padded = (jnp.pad(x, more) for x in (query, key, value))
    return _attend(*padded, tokens, head_size)[:, :tokens, :, :head_size]


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _attend(
    query: jax.Array, key: jax.Array, value: jax.Array, tokens: int, head_size: int
) -> jax.Array:
    return _mix(query, key, value, tokens, head_size)


def _mix(
    query: jax.Array, key: jax.Array, value: jax.Array, tokens: int, head_size: int
) -> jax.Array:
    """Attention to the first `tokens` of padded arrays; head_size: without padding."""
    lengths = None
    if tokens != query.shape[1]:
        lengths = jnp.full(query.shape[:1], tokens, jnp.int32)
    with _version_for_absent_devices():
        return _attention(query, key, value, scale=head_size**-0.5, key_value_seq_lengths=lengths)


def _forward(
    query: jax.Array, key: jax.Array, value: jax.Array, tokens: int, head_size: int
) -> tuple[jax.Array, Any]:
    mix = lambda q, k, v: _mix(q, k, v, tokens, head_size)
    mixed, back = jax.vjp(mix, query, key, value)
    # Without names, policies would compute again what cuDNN keeps. Queries, keys and values are
    # the projections' results, which have theirs.
    names = {id(x): x for x in (query, key, value)}

    def named(x: Any) -> Any:
        if not jnp.issubdtype(x.dtype, jnp.floating) or not x.size:
            return x
        if id(x) not in names:
            names[id(x)] = checkpoint_name(x, MIXED if x.shape == mixed.shape else STATISTICS)
        return names[id(x)]

    return named(mixed), jax.tree.map(named, back)


def _backward(tokens: int, head_size: int, back: Any, dy: jax.Array) -> tuple[jax.Array, ...]:
    del tokens, head_size
    return back(dy)


_attend.defvjp(_forward, _backward)
_attention = functools.partial(jax.nn.dot_product_attention, implementation="cudnn")


@contextlib.contextmanager
def _version_for_absent_devices() -> Iterator[None]:
    """Replaces JAX's checks of cuDNN and GPU where there is none, assuming Ampere or later."""
    if jax.default_backend() == "gpu":
        yield
        return
    checks: dict[str, Any] = {
        "check_cudnn_version": lambda: VERSION,
        "check_compute_capability": lambda capability: float(capability) <= 8.0,
        "is_cuda_compute_capability_equal": lambda capability: False,
    }
    with mock.patch.multiple(fused_attention_stablehlo, **checks):
        yield
