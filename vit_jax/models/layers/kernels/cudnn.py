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

MULTIPLE = 8  # head sizes are padded to these
# At these lengths, 64 more than a multiple of 128, cuDNN up to 9.30 at least computes NaN on Hopper
# for the gradient of a query whose logits are all below -88 (NVIDIA/cudnn-frontend, pull request
# 628): a tile is half filled, and its other half is not masked.
HALF_A_TILE, TILE = 64, 128
VERSION = 91000  # of the cuDNN that programs for absent devices are compiled for


def attend(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """softmax(q k^T / sqrt(K)) v for bfloat16 [B, N, H, K] each; [B, N, H, K].

    The softmax is computed in float32; its output and a logarithm for each query are kept for the
    backward pass. Head sizes are padded with zeros. Not for forward-mode differentiation.
    """
    if key.shape[1] % TILE == HALF_A_TILE:
        key = centred(key)
    head_size = query.shape[-1]
    more = [(0, 0), (0, 0), (0, 0), (0, -head_size % MULTIPLE)]
    padded = (jnp.pad(x, more) for x in (query, key, value))
    return _attend(*padded, head_size)[..., :head_size]


def centred(key: jax.Array) -> jax.Array:
    """[B, N, H, K]: without the mean over N, so that the logits of a query have the mean 0.

    A softmax does not see what all its logits share, so attention, and the gradient by the keys,
    are as before: the latter's sum over N is 0, and the mean passes nothing back.
    """
    mean = jnp.mean(key, axis=1, keepdims=True, dtype=jnp.float32)
    return (key - jax.lax.stop_gradient(mean)).astype(key.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _attend(query: jax.Array, key: jax.Array, value: jax.Array, head_size: int) -> jax.Array:
    return _mix(query, key, value, head_size)


def _mix(query: jax.Array, key: jax.Array, value: jax.Array, head_size: int) -> jax.Array:
    """Attention of padded heads; head_size: without padding."""
    with _checks():
        return _attention(query, key, value, scale=head_size**-0.5)


def _forward(
    query: jax.Array, key: jax.Array, value: jax.Array, head_size: int
) -> tuple[jax.Array, Any]:
    mixed, back = jax.vjp(lambda q, k, v: _mix(q, k, v, head_size), query, key, value)
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


def _backward(head_size: int, back: Any, dy: jax.Array) -> tuple[jax.Array, ...]:
    return back(dy)


_attend.defvjp(_forward, _backward)
_attention = functools.partial(jax.nn.dot_product_attention, implementation="cudnn")


@contextlib.contextmanager
def _checks() -> Iterator[None]:
    """Corrects a check of JAX, and replaces those of devices where there is no GPU.

    JAX refuses to train with odd lengths if logits have a bias, and takes its own placeholder for
    a bias for one. An absent GPU is assumed to be Ampere or later.
    """
    check: Any = fused_attention_stablehlo.check_is_flash_attention

    def without_bias(*arguments: Any, **more: Any) -> None:
        check(*arguments[:5], False, *arguments[6:], **more)  # the sixth: whether there is a bias

    checks: dict[str, Any] = {"check_is_flash_attention": without_bias}
    if jax.default_backend() != "gpu":
        checks |= {
            "check_cudnn_version": lambda: VERSION,
            "check_compute_capability": lambda capability: float(capability) <= 8.0,
            "is_cuda_compute_capability_equal": lambda capability: False,
        }
    with mock.patch.multiple(fused_attention_stablehlo, **checks):
        yield
