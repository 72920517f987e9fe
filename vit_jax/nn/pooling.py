"""Attention pooling: a learned probe asks all tokens for what the head is to see.

The multi-head attention pooling (MAP) of arXiv 1810.00825 (section 3.2) with one probe, as Vision
Transformers have it since arXiv 2106.04560 (section 3.2).
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.core.axes import (  # fmt: skip
    BATCH,
    HEAD_SIZE,
    HEADS,
    QKV,
    STREAM,
    TOKENS,
    WIDTH,
    constrain,
)
from vit_jax.nn.attention import attend, input_projections, output_projection
from vit_jax.nn.initialization import VIT, Initialization
from vit_jax.nn.linear import EPSILON, Initializer, param
from vit_jax.nn.mlp import Mlp
from vit_jax.nn.norm import norm as make_norm
from vit_jax.nn.precision import Precision


class AttentionPooling(nnx.Module):
    """The probe attends to the tokens, then an MLP behind a norm is added; without dropout."""

    def __init__(
        self,
        width: int,
        mlp_dim: int,
        num_heads: int,
        *,
        gelu: str,
        norm: str = "layer",
        norm_epsilon: float = EPSILON,
        start: Initialization = VIT,
        precision: Precision,
        rngs: nnx.Rngs,
    ):
        made: dict[str, Any] = {"precision": precision, "rngs": rngs}
        with_kernel = {"kernel_init": start.kernel, **made}
        probe_init = functools.partial(_probe_init, start.kernel)
        self.probe = param(probe_init, (width,), (WIDTH,), rngs.params())
        self.query = input_projections(1, width, num_heads, **with_kernel)
        self.key_value = input_projections(2, width, num_heads, **with_kernel)
        self.out = output_projection(width, num_heads, **with_kernel)
        self.precision = precision
        self.norm = make_norm(norm, width, WIDTH, epsilon=norm_epsilon, **made)
        self.mlp = Mlp(width, mlp_dim, gelu=gelu, dropout=0.0, start=start, **made)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, N, D] -> [B, D]."""
        query = self.query(self.probe[...])  # [1, H, K]: one token, the same for every image
        query = jnp.broadcast_to(query, (x.shape[0], *query.shape))
        key_value = constrain(self.key_value(x), BATCH, TOKENS, QKV, HEADS, HEAD_SIZE)
        key, value = key_value[:, :, 0], key_value[:, :, 1]
        x = self.out(attend(query, key, value, self.precision.softmax))
        x = x + self.mlp(self.norm(x), None)
        return constrain(x[:, 0], BATCH, STREAM)


def _probe_init(init: Initializer, key: Any, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """`init` for the probe seen as [1, D]."""
    return init(key, (1, *shape), dtype)[0]
