"""Attention pooling: a learned probe attends to all tokens and gives the head its input.

The multi-head attention pooling (MAP) of arXiv 1810.00825 (section 3.2) with one probe, as in
Vision Transformers since arXiv 2106.04560 (section 3.2).
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.core.axes import BATCH, HEAD_SIZE, HEADS, QKV, STREAM, TOKENS, WIDTH, constrain
from vit_jax.nn.attention import attend, input_projections, normalised_weights, output_projection
from vit_jax.nn.block import Mlp
from vit_jax.nn.block_spec import BlockSpec
from vit_jax.nn.linear import Initializer, param
from vit_jax.nn.norm import norm


class AttentionPooling(nnx.Module):
    """Attention from a probe to the tokens, plus a plain MLP of its normalised output."""

    def __init__(self, spec: BlockSpec, *, rngs: nnx.Rngs):
        probe_init = functools.partial(_probe_init, spec.start.kernel)
        self.probe = param(probe_init, (spec.width,), (WIDTH,), rngs.params())
        self.query = input_projections(1, spec, rngs=rngs)
        self.key_value = input_projections(2, spec, rngs=rngs)
        self.out = output_projection(spec, rngs=rngs)
        self.precision = spec.precision
        self.norm = norm(
            spec.norm, spec.width, WIDTH,
            epsilon=spec.norm_epsilon, precision=spec.precision, rngs=rngs,
        )  # fmt: skip
        plain = dataclasses.replace(spec, mlp="mlp", dense_bias=True, dropout=0.0)
        self.mlp = Mlp(plain, rngs=rngs)

    def __call__(self, x: jax.Array, offset: jax.Array | None = None) -> jax.Array:
        """[B, N, D] -> [B, D]; offset: [B, H, 1, N], as in SelfAttention."""
        query, key, value = self._projected(x)
        mixed = attend(query, key, value, self.precision.softmax)
        if offset is not None:
            mixed = mixed + jnp.einsum("bhqs,bshk->bqhk", offset.astype(value.dtype), value)
        x = self.out(mixed)
        x = x + self.mlp(self.norm(x), None)
        return constrain(x[:, 0], BATCH, STREAM)

    def weights(self, x: jax.Array) -> jax.Array:
        """[B, N, D] -> [B, H, 1, N] float32: how much the probe takes from each token."""
        query, key, _ = self._projected(x)
        return normalised_weights(query, key)

    def _projected(self, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """[B, N, D] -> the probe's query [B, 1, H, K], keys and values [B, N, H, K]."""
        query = self.query(self.probe[...])  # [1, H, K]: one token, the same for every image
        query = jnp.broadcast_to(query, (x.shape[0], *query.shape))
        key_value = constrain(self.key_value(x), BATCH, TOKENS, QKV, HEADS, HEAD_SIZE)
        return query, key_value[:, :, 0], key_value[:, :, 1]


def _probe_init(init: Initializer, key: Any, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """`init` applied to the probe reshaped to [1, D]."""
    return init(key, (1, *shape), dtype)[0]
