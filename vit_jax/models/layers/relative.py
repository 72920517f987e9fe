"""Relative positions: biases of attention's logits, by the offset between two tokens.

Learned ones are for one grid of patches; nothing is added to the tokens.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vit_jax.core.axes import HEAD_SIZE, HEADS, MLP, POSITIONS
from vit_jax.core.token_layout import TokenLayout
from vit_jax.models.layers.kernels.xla import Projected, scaled
from vit_jax.models.layers.linear import FLOAT32, Linear, param
from vit_jax.models.layers.logits import BIAS, LogitTransform, add_bias
from vit_jax.models.layers.posemb import Positions


class Biases(Positions):
    """Positions that are a bias of the logits."""

    def bias(self, query: jax.Array) -> jax.Array:
        """Queries [B, N, H, K], scaled -> [B or 1, H, N, N]."""
        raise NotImplementedError

    def inside(self, projected: Projected) -> Projected:
        bias = LogitTransform(BIAS, add_bias, self.bias(scaled(projected.query)))
        return projected._replace(qkv=None, transforms=(*projected.transforms, bias))


class RelativePositions(Biases):
    """A learned key for each offset in the 1-D sequence, shared by all heads (appendix D.4).

    The query's product with it is added to the logits of attention, as in arXiv 1803.02155,
    section 3.2. Offset o, from -(N - 1) to N - 1, is the query's position minus the key's; its
    vector is in row o + N - 1.
    """

    def __init__(self, spec: Any, layout: TokenLayout, rngs: nnx.Rngs):
        super().__init__(spec, layout)
        shape = (2 * layout.num_tokens - 1, spec.width // spec.num_heads)
        self.offsets = param(spec.init.positions, shape, (POSITIONS, HEAD_SIZE), rngs.params())

    def bias(self, query: jax.Array) -> jax.Array:
        keys = self.offsets[...].astype(query.dtype)[::-1]  # row N - 1 + (key - query)
        return _skewed(jnp.einsum("bqhk,ok->bhqo", query, keys))


def _skewed(x: jax.Array) -> jax.Array:
    """[..., N, 2N - 1] -> [..., N, N]: the N entries of each row q from N - 1 - q on.

    Done by reshaping alone: with rows padded to 2N and flattened, entry N - 1 - q + k of row q has
    index (N - 1) + q (2N - 1) + k, so rows of 2N - 1 from there begin with the N entries.
    """
    *batch, n, width = x.shape
    flat = jnp.pad(x, ((0, 0),) * (len(batch) + 1) + ((0, 1),)).reshape(*batch, n * (width + 1))
    return flat[..., n - 1 : n - 1 + n * width].reshape(*batch, n, width)[..., :n]


class Relative2dPositions(Biases):
    """A learned bias of each head for each offset of rows and columns (BEiT, arXiv 2106.08254).

    Three more rows are for class token and registers: what they take from patches, patches from
    them, and they from each other.
    """

    def __init__(self, spec: Any, layout: TokenLayout, rngs: nnx.Rngs):
        super().__init__(spec, layout)
        self.prefix = layout.num_tokens - layout.num_patches
        shape = (num_offsets(layout.grid) + 3 * bool(self.prefix), spec.num_heads)
        self.offsets_2d = param(spec.init.positions, shape, (POSITIONS, HEADS), rngs.params())

    def bias(self, query: jax.Array) -> jax.Array:
        n, table = num_offsets(self.layout.grid), offsets_2d(self.layout.grid)
        table = np.pad(table, ((self.prefix, 0), (self.prefix, 0)))
        table[: self.prefix], table[:, : self.prefix] = n, n + 1
        table[: self.prefix, : self.prefix] = n + 2
        return jnp.moveaxis(self.offsets_2d[...][table], 2, 0)[None].astype(query.dtype)


class RelativeMlpPositions(Biases):
    """A bias of each head by an MLP of the logarithms of both offsets (arXiv 2111.09883, 3.3).

    sign(o) log(1 + |o|) of offsets o in patches, and without bounds, as in timm's "cr". Class token
    and registers have none.
    """

    def __init__(self, spec: Any, layout: TokenLayout, rngs: nnx.Rngs):
        super().__init__(spec, layout)
        init, hidden = spec.init.positions, (spec.position_hidden,)
        dense = functools.partial(Linear, kernel_init=init, precision=FLOAT32, rngs=rngs)
        self.fc1 = dense((2,), hidden, (POSITIONS,), (MLP,))
        self.fc2 = dense(hidden, (spec.num_heads,), (MLP,), (HEADS,))

    def bias(self, query: jax.Array) -> jax.Array:
        rows, columns = self.layout.grid
        offsets = np.indices((2 * rows - 1, 2 * columns - 1)).reshape(2, -1).T
        offsets = offsets - np.array([rows - 1, columns - 1])
        logs = (np.sign(offsets) * np.log1p(np.abs(offsets))).astype(np.float32)
        table = self.fc2(jax.nn.relu(self.fc1(jnp.asarray(logs))))[offsets_2d(self.layout.grid)]
        prefix = self.layout.num_tokens - self.layout.num_patches
        padded = jnp.pad(table, ((prefix, 0), (prefix, 0), (0, 0)))
        return jnp.moveaxis(padded, 2, 0)[None].astype(query.dtype)


def num_offsets(grid: tuple[int, int]) -> int:
    """The number of pairs of offsets between a grid's rows and columns."""
    return (2 * grid[0] - 1) * (2 * grid[1] - 1)


def offsets_2d(grid: tuple[int, int]) -> np.ndarray:
    """[N, N] for N patches: the number of the query's offsets from the key, row by row."""
    down, right = (x[:, None] - x for x in np.indices(grid).reshape(2, -1))
    return (down + grid[0] - 1) * (2 * grid[1] - 1) + right + grid[1] - 1
