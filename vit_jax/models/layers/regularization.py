"""Dropout (section B.1) and stochastic depth.

The cost of dropout is its random bits, so it uses half as many as usual: a 32-bit word decides on
two values, and rates are multiples of 2**-16, below 1. By the compiler's estimates for a TPU v3
that takes a quarter off the step of L/16 (benchmarks/claims.csv).
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.models.layers.linear import times

BITS = 16  # random bits for one value of dropout
LEAST_KEPT = 2.0**-16  # share of examples: a rate that float32 rounds to 1 would divide by 0


def dropout_key(rngs: Any) -> jax.Array:
    """The key of a pass in training, from an nnx.Rngs with a stream "dropout", or a key."""
    if rngs is None:
        raise ValueError("train=True draws random numbers: pass rngs=nnx.Rngs(dropout=0) or a key.")
    return rngs.dropout() if isinstance(rngs, nnx.Rngs) else rngs


def split_key(key: jax.Array | None, number: int) -> Any:
    """`number` keys; of None, as in evaluation, as many times None."""
    return [None] * number if key is None else jax.random.split(key, number)


class Dropout(nnx.Module):
    """Zeroes values with probability `rate`, in [0, 1), and scales up the others to compensate."""

    def __init__(self, rate: float):
        self.rate = rate

    def __call__(self, x: jax.Array, key: jax.Array | None, tokens: int | None = None) -> jax.Array:
        """[B, N, ...] -> [B, N, ...]; without a key (evaluation) `x` is returned unchanged.

        tokens: how many there are in all, of which x has the first N; default: N.
        """
        # At least one in 2**BITS is kept: 1 / 0 would make the gradients of dropped values NaN.
        kept = max(1, round((1 - self.rate) * 2**BITS))
        if key is None or kept == 2**BITS:
            return x
        shape = (x.shape[0], tokens or x.shape[1], *x.shape[2:])
        mask = keep_mask(key, shape, kept)[:, : x.shape[1]]
        return jnp.where(mask, times(x, 2**BITS / kept), 0).astype(x.dtype)


def keep_mask(key: jax.Array, shape: tuple[int, ...], kept: int) -> jax.Array:
    """bool [B, N, ...], each True with probability kept / 2**16.

    The two halves of a word belong to two tokens: a mesh may divide the batch and the width, but
    never the tokens.
    """
    batch, tokens, *rest = shape
    words = jax.random.bits(key, (batch, (tokens + 1) // 2, *rest), jnp.uint32)
    low, high = words & jnp.uint32(2**BITS - 1), words >> jnp.uint32(BITS)
    mask = jnp.concatenate([low < kept, high < kept], axis=1)
    return mask[:, :tokens]


def drop_branch(y: jax.Array, rate: jax.Array | None, key: jax.Array | None) -> jax.Array:
    """Stochastic depth (arXiv 1603.09382): zeroes a whole branch [B, ...], per example.

    Kept examples are scaled by 1 / (1 - rate), so evaluation needs no correction.
    """
    if key is None or rate is None:
        return y
    keep = jnp.maximum(1.0 - rate, LEAST_KEPT)
    kept = jax.random.bernoulli(key, keep, (y.shape[0],) + (1,) * (y.ndim - 1))
    return jnp.where(kept, times(y, 1.0 / keep), 0)
