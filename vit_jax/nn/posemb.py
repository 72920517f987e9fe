"""Position embeddings: what tells a token where it was in the image."""

from __future__ import annotations

import jax
from flax import nnx
from jax.nn import initializers

from vit_jax.core.axes import POSITIONS, WIDTH
from vit_jax.nn.linear import param


class LearnedPositions(nnx.Module):
    """One learned vector a token of the 1-D sequence, the class token's first (section 3.1)."""

    def __init__(self, num_tokens: int, width: int, *, rngs: nnx.Rngs):
        self.embedding = param(
            initializers.normal(0.02), (num_tokens, width), (POSITIONS, WIDTH), rngs.params()
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, N, D] -> [B, N, D]."""
        return x + self.embedding[...].astype(x.dtype)
