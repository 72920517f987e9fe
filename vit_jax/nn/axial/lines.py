"""Attention of each token of a grid with those of its row, or of its column.

Along one axis at a time (arXiv 1912.12180): the lines of the grid, its rows or its columns, are
examples of their own. A row's tokens have one height in the image, a column's one place in width.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.nn.attention import SelfAttention, attend, normalised_weights
from vit_jax.nn.block import Block
from vit_jax.nn.block_spec import BlockSpec

ROW, COLUMN = "row", "column"  # what the lines are
Grid = tuple[int, int]  # rows and columns


def lines(x: jax.Array, grid: Grid, of: str) -> jax.Array:
    """[B, N, ...], row by row -> [B * rows, columns, ...], or [B * columns, rows, ...]."""
    x = x.reshape(x.shape[0], *grid, *x.shape[2:])
    x = x if of == ROW else jnp.swapaxes(x, 1, 2)
    return x.reshape(-1, *x.shape[2:])


def joined(x: jax.Array, grid: Grid, of: str) -> jax.Array:
    """What `lines` came from: [B * rows, columns, ...] or so -> [B, N, ...]."""
    order = grid if of == ROW else grid[::-1]
    x = x.reshape(-1, *order, *x.shape[2:])
    x = x if of == ROW else jnp.swapaxes(x, 1, 2)
    return x.reshape(x.shape[0], -1, *x.shape[3:])


class LineAttention(SelfAttention):
    """Self-attention along the rows, or the columns, of a grid of tokens.

    Always by XLA's program: the kernels are for more tokens than a line has.

    Args:
      grid: the tokens are these rows and columns, and no others.
      of: what the lines are, ROW or COLUMN.
    """

    def __init__(self, spec: BlockSpec, *, grid: Grid, of: str, rngs: nnx.Rngs):
        super().__init__(spec, rngs=rngs)
        self.grid, self.of = grid, of

    def weights(self, x: jax.Array, positions: Any = None) -> jax.Array:
        """[B, N, D] -> [B, H, N, N] float32; zeros outside of a token's line. Rows sum to 1."""
        _, query, key, _, _ = self._projected(x, positions)
        within = normalised_weights(*(lines(x, self.grid, self.of) for x in (query, key)))
        rows, columns = self.grid
        number = rows if self.of == ROW else columns
        within = within.reshape(x.shape[0], number, *within.shape[1:])
        same = jnp.eye(number, dtype=within.dtype)
        order = "bhlqmk" if self.of == ROW else "bhqlkm"
        return jnp.einsum(f"blhqk,lm->{order}", within, same).reshape(
            x.shape[0], -1, rows * columns, rows * columns
        )

    def _mix(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        bias: jax.Array | None,
        qkv: jax.Array | None,
    ) -> jax.Array:
        """`attend` within each line; [B, N, H, K] each."""
        del qkv
        assert bias is None
        each = (lines(x, self.grid, self.of) for x in (query, key, value))
        return joined(attend(*each, self.precision.softmax), self.grid, self.of)


class AxialBlock(nnx.Module):
    """Two encoder blocks: attention along rows and an MLP, along columns and an MLP.

    arXiv 2010.11929, appendix D.6. Norms, residuals, dropout and stochastic depth are those of
    each `Block`.

    Args:
      spec: of both.
      grid: rows and columns of the tokens.
      **arguments: of both, such as `scanned`.
    """

    def __init__(self, spec: BlockSpec, *, grid: Grid, rngs: nnx.Rngs, **arguments: Any):
        def block(of: str) -> Block:
            attention = lambda spec, rngs: LineAttention(spec, grid=grid, of=of, rngs=rngs)
            return Block(spec, attention=attention, rngs=rngs, **arguments)

        self.row, self.column = block(ROW), block(COLUMN)

    @property
    def each(self) -> tuple[Block, ...]:
        """The blocks, one after the other."""
        return self.row, self.column

    def __call__(
        self,
        x: jax.Array,
        key: jax.Array | None = None,
        drop_rate: jax.Array | None = None,
        positions: Any = None,
    ) -> jax.Array:
        """[B, N, D] -> [B, N, D]; the arguments of `Block`."""
        keys = [None] * len(self.each) if key is None else jax.random.split(key, len(self.each))
        for block, own in zip(self.each, keys, strict=True):
            x = block(x, own, drop_rate, positions)
        return x
