"""Norms: a transformer's, by name, and the group norm of ResNets."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn import initializers

from vit_jax.models.layers.linear import Initializer, Precision, param

EPSILON = 1e-6  # layer norms, as in the released weights
# "layer": layer norm; "layer_no_bias": the same without a learned offset; "rms": not
# centred either (arXiv 1910.07467), as in ViT-22B (arXiv 2302.05442, section 2).
NORMS = ("layer", "layer_no_bias", "rms")
GROUPS = 32  # of a group norm


def norm(
    kind: str,
    width: int,
    axis: str,
    *,
    epsilon: float = EPSILON,
    precision: Precision,
    rngs: nnx.Rngs,
) -> nnx.Module:
    """One of NORMS over a last axis of size `width`, named `axis`; float32 statistics."""
    ones, zeros = (
        nnx.with_metadata(init, axes=(axis,)) for init in (initializers.ones, initializers.zeros)
    )
    common: Any = {
        "epsilon": epsilon, "dtype": precision.compute, "scale_init": ones, "rngs": rngs
    }  # fmt: skip
    if kind == "rms":
        return nnx.RMSNorm(width, **common)
    return nnx.LayerNorm(width, use_bias=kind == "layer", bias_init=zeros, **common)


class GroupNorm(nnx.Module):
    """Normalisation of 32 groups of neighbouring channels to mean 0 and variance 1.

    Statistics are over all positions of one example (arXiv 1803.08494).

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
