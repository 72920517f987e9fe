"""Position embeddings: what tells a token where it was in the image.

Learned ones are parameters; fixed ones are sines and cosines of the place, computed when they are
needed, and no checkpoint has them.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.nn import initializers

from vit_jax.core.axes import POSITIONS, WIDTH
from vit_jax.nn.linear import param

LONGEST = 10_000.0  # wavelength of the slowest sine, over that of the fastest


class TokenLayout(NamedTuple):
    """Where the N tokens come from: a class token first, if there is one, then patches row by row.

    Attributes:
      grid: (rows, columns) of patches.
      class_token: whether there is one.
    """

    grid: tuple[int, int]
    class_token: bool

    @property
    def num_tokens(self) -> int:
        """N, the class token included."""
        return self.grid[0] * self.grid[1] + self.class_token


class LearnedPositions(nnx.Module):
    """One learned vector a token of the 1-D sequence, the class token's first (section 3.1)."""

    def __init__(self, num_tokens: int, width: int, *, rngs: nnx.Rngs):
        self.embedding = param(
            initializers.normal(0.02), (num_tokens, width), (POSITIONS, WIDTH), rngs.params()
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, N, D] -> [B, N, D]."""
        return x + self.embedding[...].astype(x.dtype)


class SinCos1dPositions(nnx.Module):
    """Fixed, by the place in the 1-D sequence; a class token is at place 0 and shifts the rest."""

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, N, D] -> [B, N, D]."""
        _, num_tokens, width = x.shape
        return x + jnp.asarray(sincos_1d(num_tokens, width), x.dtype)


class SinCos2dPositions(nnx.Module):
    """Fixed, by the patch's row and column; a class token, which has neither, gets zeros."""

    def __init__(self, layout: TokenLayout):
        self.layout = layout

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, N, D] -> [B, N, D]."""
        table = sincos_2d(self.layout.grid, x.shape[-1])
        table = np.pad(table, ((int(self.layout.class_token), 0), (0, 0)))
        return x + jnp.asarray(table, x.dtype)


def sincos_1d(num_tokens: int, width: int) -> np.ndarray:
    """[N, D]: sin(n / LONGEST^(2i/D)) at 2i and its cosine at 2i + 1 (arXiv 1706.03762, 3.5)."""
    angles = np.arange(num_tokens)[:, None] * LONGEST ** (-np.arange(0, width, 2) / width)
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(num_tokens, width)


def sincos_2d(grid: tuple[int, int], width: int) -> np.ndarray:
    """[rows * columns, D]: sin x, cos x, sin y, cos y, a quarter of the width each.

    As in arXiv 2104.02057, with the frequencies of the code of arXiv 2205.01580: D/4 of them, from
    1 to 1 / LONGEST, both included.
    """
    y, x = np.indices(grid).reshape(2, -1, 1) * LONGEST ** -np.linspace(0, 1, width // 4)
    return np.concatenate([np.sin(x), np.cos(x), np.sin(y), np.cos(y)], axis=1)
