"""LayerScale: each branch of a block enters by a learned factor a channel (arXiv 2103.17239)."""

from __future__ import annotations

import jax
from flax import nnx
from jax.nn import initializers

from vit_jax.core.axes import WIDTH
from vit_jax.nn.linear import param


class LayerScale(nnx.Module):
    """A diagonal matrix, all its entries `initial_value` at first."""

    def __init__(self, width: int, initial_value: float, *, rngs: nnx.Rngs):
        init = initializers.constant(initial_value)
        self.scale = param(init, (width,), (WIDTH,), rngs.params())

    def __call__(self, y: jax.Array) -> jax.Array:
        """[..., D] -> [..., D]."""
        return y * self.scale[...].astype(y.dtype)
