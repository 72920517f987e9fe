"""The encoder block: attention, then MLP, each behind a norm and added to its input (Eq. 2-3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.core.axes import WIDTH
from vit_jax.nn.attention import SelfAttention
from vit_jax.nn.dropout import Dropout
from vit_jax.nn.initialization import VIT, Initialization
from vit_jax.nn.layer_scale import LayerScale
from vit_jax.nn.linear import EPSILON
from vit_jax.nn.mlp import Mlp
from vit_jax.nn.norm import norm as make_norm
from vit_jax.nn.posemb import Positions
from vit_jax.nn.precision import Precision, times

LEAST_KEPT = 2.0**-16  # of the examples: a rate that float32 rounds to 1 would divide by 0


class Block(nnx.Module):
    """Pre-norm, residual last.

    Args:
      num_heads, qkv_bias, qk_norm: as of SelfAttention.
      mlp, mlp_dim, gelu: as of Mlp.
      dense_bias: whether the MLP and the output of attention have biases.
      parallel: attention and MLP see the same, x + attention(norm(x)) + mlp(norm(x)), with one norm
        (arXiv 2302.05442, section 2).
      layer_scale: initial value of LayerScale before each residual; 0: none.
      norm: one of norm.NORMS.
      start: how its parameters start.
      positions: makes a position embedding of this block's own.
    """

    def __init__(
        self,
        *,
        width: int,
        mlp_dim: int,
        num_heads: int,
        gelu: str,
        mlp: str = "mlp",
        parallel: bool = False,
        qkv_bias: str = "all",
        dense_bias: bool = True,
        qk_norm: bool = False,
        dropout: float,
        layer_scale: float,
        norm: str = "layer",
        norm_epsilon: float = EPSILON,
        start: Initialization = VIT,
        positions: Callable[[nnx.Rngs], Positions] | None = None,
        precision: Precision,
        rngs: nnx.Rngs,
    ):
        with_epsilon: Any = {"epsilon": norm_epsilon, "precision": precision, "rngs": rngs}
        self.norm1 = make_norm(norm, width, WIDTH, **with_epsilon)
        self.attention = SelfAttention(
            width,
            num_heads,
            qkv_bias=qkv_bias,
            out_bias=dense_bias,
            qk_norm=qk_norm,
            norm=norm,
            norm_epsilon=norm_epsilon,
            kernel_init=start.kernel,
            precision=precision,
            rngs=rngs,
        )
        if not parallel:
            self.norm2 = make_norm(norm, width, WIDTH, **with_epsilon)
        self.mlp = Mlp(
            width,
            mlp_dim,
            gelu=gelu,
            kind=mlp,
            bias=dense_bias,
            dropout=dropout,
            start=start,
            precision=precision,
            rngs=rngs,
        )
        self.dropout = Dropout(dropout)
        if layer_scale:
            self.scale1 = LayerScale(width, layer_scale, rngs=rngs)
            self.scale2 = LayerScale(width, layer_scale, rngs=rngs)
        self.scaled = bool(layer_scale)
        self.parallel = parallel
        self.positions = positions(rngs) if positions else None

    def __call__(
        self,
        x: jax.Array,
        key: jax.Array | None = None,
        drop_rate: jax.Array | None = None,
        positions: Positions | None = None,
    ) -> jax.Array:
        """[B, N, D] -> [B, N, D].

        Args:
          x: tokens.
          key: of dropout and stochastic depth; None in evaluation.
          drop_rate: probability that an example skips a branch; None: never.
          positions: a position embedding that all blocks share.
        """
        keys = [None] * 5 if key is None else list(jax.random.split(key, 5))
        positions = positions if self.positions is None else self.positions
        x = x if positions is None else positions(x)
        normed = self.norm1(x)
        y = self.attention(normed, positions)
        y = self.dropout(y, keys[0])
        y = self.scale1(y) if self.scaled else y
        x = x + drop_branch(y, drop_rate, keys[1])
        y = self.mlp(normed if self.parallel else self.norm2(x), keys[2])
        y = self.dropout(y, keys[3])
        y = self.scale2(y) if self.scaled else y
        return x + drop_branch(y, drop_rate, keys[4])


def drop_branch(y: jax.Array, rate: jax.Array | None, key: jax.Array | None) -> jax.Array:
    """Stochastic depth (arXiv 1603.09382): a whole branch [B, ...] to zero, per example.

    Those that stay are scaled by 1 / (1 - rate), so evaluation needs no correction.
    """
    if key is None or rate is None:
        return y
    keep = jnp.maximum(1.0 - rate, LEAST_KEPT)
    kept = jax.random.bernoulli(key, keep, (y.shape[0],) + (1,) * (y.ndim - 1))
    return jnp.where(kept, times(y, 1.0 / keep), 0)
