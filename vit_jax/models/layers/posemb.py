"""Position embeddings: the position of each token in the image.

Learned ones are parameters; fixed ones are sines and cosines of the position, computed when
needed and not saved in checkpoints. These are added to the tokens; relative.py and rotary.py have
those that act inside attention instead. Registers have no position and get nothing.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vit_jax.core.axes import POSITIONS, WIDTH
from vit_jax.core.token_layout import TokenLayout
from vit_jax.models.layers.kernels.xla import Projected
from vit_jax.models.layers.linear import param

LONGEST = 10_000.0  # ratio of the longest wavelength to the shortest


class Positions(nnx.Module):
    """A position embedding; a subclass overrides one of the ways in which it may act.

    Args:
      spec: a ViTSpec. layout: that of the tokens.
    """

    def __init__(self, spec: Any = None, layout: Any = None, rngs: nnx.Rngs | None = None):
        self.layout: TokenLayout = layout

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, N, D] -> [B, N, D]: added to the tokens."""
        return x

    def on(self, layout: TokenLayout) -> "Positions":
        """The same for tokens of another layout: images of another size."""
        return self

    def rotate(self, x: jax.Array) -> jax.Array:
        """[B, N, H, K] -> [B, N, H, K], applied to queries and to keys."""
        return x

    def inside(self, projected: Projected) -> Projected:
        """Attention's inputs with these positions, if they act there."""
        query, key = self.rotate(projected.query), self.rotate(projected.key)
        return projected._replace(query=query, key=key, qkv=None)


class Table(Positions):
    """Positions of images of another size, by interpolation; never a part of a model.

    They are places in the image, whatever the number of patches, as for crops that are enlarged or
    shrunk to their size (arXiv 2104.14294).
    """

    def __init__(self, table: jax.Array):
        self.table = table

    def __call__(self, x: jax.Array) -> jax.Array:
        return x + self.table.astype(x.dtype)


def interpolated(table: jax.Array, old: TokenLayout, new: TokenLayout) -> Table:
    """Positions interpolated from a table [places, D] of the layout `old`."""
    from vit_jax.models.layers.resized_positions import resize_positions

    places = resize_positions(table, old, new, method="bicubic_torch")
    return Table(new.pad_places(places))


class LearnedPositions(Positions):
    """A learned vector for each token of the 1-D sequence, class token first (section 3.1)."""

    def __init__(self, spec: Any, layout: TokenLayout, rngs: nnx.Rngs):
        super().__init__(spec, layout)
        shape, axes = (layout.num_places, spec.width), (POSITIONS, WIDTH)
        self.embedding = param(spec.init.positions, shape, axes, rngs.params())

    def __call__(self, x: jax.Array) -> jax.Array:
        return x + self.layout.pad_places(self.embedding[...]).astype(x.dtype)

    def on(self, layout: TokenLayout) -> Positions:
        same = layout.grid == self.layout.grid
        return self if same else interpolated(self.embedding[...], self.layout, layout)


class Learned2dPositions(Positions):
    """A learned half for the patch's column and one for its row, side by side (appendix D.4).

    A class token, which has neither, gets zeros.
    """

    def __init__(self, spec: Any, layout: TokenLayout, rngs: nnx.Rngs):
        super().__init__(spec, layout)
        (rows, columns), axes = layout.grid, (POSITIONS, WIDTH)
        init, half = spec.init.positions, spec.width // 2
        self.columns = param(init, (columns, half), axes, rngs.params())
        self.rows = param(init, (rows, half), axes, rngs.params())

    def __call__(self, x: jax.Array) -> jax.Array:
        return x + self.layout.pad_patches(self._patch_table()).astype(x.dtype)

    def on(self, layout: TokenLayout) -> Positions:
        if layout.grid == self.layout.grid:
            return self
        old, new = (x._replace(class_place=False) for x in (self.layout, layout))
        return interpolated(self._patch_table(), old, new)

    def _patch_table(self) -> jax.Array:
        """[rows * columns, D]."""
        row, column = np.indices(self.layout.grid).reshape(2, -1)
        return jnp.concatenate([self.columns[...][column], self.rows[...][row]], axis=-1)


class SinCosPositions(Positions):
    """Fixed sines of the position in the 1-D sequence, or of the patch's row and column."""

    def __init__(self, spec: Any, layout: TokenLayout, rngs: nnx.Rngs | None = None):
        super().__init__(spec, layout)
        self.kind, self.width = spec.position_embedding, spec.width

    def __call__(self, x: jax.Array) -> jax.Array:
        return x + jnp.asarray(sincos(self.kind, self.layout, x.shape[-1]), x.dtype)

    def on(self, layout: TokenLayout) -> Positions:
        """Places between those of these patches; their own wavelengths would be other places."""
        old = self.layout._replace(registers=0)
        if layout.grid == old.grid:
            return self
        table = jnp.asarray(sincos(self.kind, old, self.width), jnp.float32)
        unplaced = old.num_tokens - old.num_places
        return interpolated(table[unplaced:], old, layout)


def sincos(kind: str, layout: TokenLayout, width: int) -> np.ndarray:
    """[N, D]; a class token has zeros in "sincos_2d", and shifts the rest in "sincos_1d"."""
    if kind == "sincos_1d":
        return layout.pad_places(sincos_1d(layout.num_places, width))
    return layout.pad_patches(sincos_2d(layout.grid, width))


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
