"""The encoder block: attention, then MLP, each behind a norm and added to its input (Eq. 2-3)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.core.axes import WIDTH
from vit_jax.nn.attention import SelfAttention
from vit_jax.nn.dropout import Dropout
from vit_jax.nn.layer_scale import LayerScale
from vit_jax.nn.linear import EPSILON, LayerNorm
from vit_jax.nn.mlp import Mlp
from vit_jax.nn.precision import Precision


class Block(nnx.Module):
    """Pre-norm, residual last; with LayerScale before it unless `layer_scale` is 0."""

    def __init__(
        self,
        *,
        width: int,
        mlp_dim: int,
        heads: int,
        gelu: str,
        dropout: float,
        layer_scale: float,
        norm_epsilon: float = EPSILON,
        precision: Precision,
        rngs: nnx.Rngs,
    ):
        norm: Any = {"epsilon": norm_epsilon, "precision": precision, "rngs": rngs}
        self.norm1 = LayerNorm(width, WIDTH, **norm)
        self.attention = SelfAttention(width, heads, precision=precision, rngs=rngs)
        self.norm2 = LayerNorm(width, WIDTH, **norm)
        self.mlp = Mlp(width, mlp_dim, gelu=gelu, dropout=dropout, precision=precision, rngs=rngs)
        self.dropout = Dropout(dropout)
        if layer_scale:
            self.scale1 = LayerScale(width, layer_scale, rngs=rngs)
            self.scale2 = LayerScale(width, layer_scale, rngs=rngs)
        self.scaled = bool(layer_scale)

    def __call__(
        self, x: jax.Array, key: jax.Array | None = None, drop_rate: jax.Array | None = None
    ) -> jax.Array:
        """[B, N, D] -> [B, N, D].

        Args:
          x: tokens.
          key: of dropout and stochastic depth; None in evaluation.
          drop_rate: probability that an example skips a branch; None: never.
        """
        keys = [None] * 5 if key is None else list(jax.random.split(key, 5))
        y = self.attention(self.norm1(x))
        y = self.dropout(y, keys[0])
        y = self.scale1(y) if self.scaled else y
        x = x + drop_branch(y, drop_rate, keys[1])
        y = self.mlp(self.norm2(x), keys[2])
        y = self.dropout(y, keys[3])
        y = self.scale2(y) if self.scaled else y
        return x + drop_branch(y, drop_rate, keys[4])


def drop_branch(y: jax.Array, rate: jax.Array | None, key: jax.Array | None) -> jax.Array:
    """Stochastic depth (arXiv 1603.09382): a whole branch [B, ...] to zero, per example.

    Those that stay are scaled by 1 / (1 - rate), so evaluation needs no correction.
    """
    if key is None or rate is None:
        return y
    keep = 1.0 - rate
    kept = jax.random.bernoulli(key, keep, (y.shape[0],) + (1,) * (y.ndim - 1))
    return jnp.where(kept, y / jnp.asarray(keep, y.dtype), 0)
