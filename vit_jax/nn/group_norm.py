"""Group normalisation (arXiv 1803.08494), which does not look across examples."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn import initializers

from vit_jax.nn.linear import Initializer, param
from vit_jax.nn.precision import Precision

GROUPS = 32


class GroupNorm(nnx.Module):
    """Mean 0 and variance 1 in each of 32 groups of neighbouring channels, over all places.

    Args:
      channels: a multiple of 32.
      axis: their logical name.
      epsilon: added to the variance; 1e-5 in the released BiT, 1e-6 in the released hybrids.
    """

    def __init__(
        self,
        channels: int,
        axis: str,
        *,
        epsilon: float,
        scale_init: Initializer = initializers.ones,
        precision: Precision,
        rngs: nnx.Rngs,
    ):
        self.scale = param(scale_init, (channels,), (axis,), rngs.params())
        self.bias = param(initializers.zeros, (channels,), (axis,), rngs.params())
        self.epsilon, self.precision = epsilon, precision

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, H, W, C] -> [B, H, W, C]; statistics in float32."""
        groups = x.reshape(*x.shape[:-1], GROUPS, -1).astype(jnp.float32)
        over = (1, 2, 4)
        groups = groups - jnp.mean(groups, axis=over, keepdims=True)
        variance = jnp.mean(jnp.square(groups), axis=over, keepdims=True)
        groups = groups * jax.lax.rsqrt(variance + self.epsilon)
        y = groups.reshape(x.shape) * self.scale[...] + self.bias[...]
        return y.astype(self.precision.compute)
