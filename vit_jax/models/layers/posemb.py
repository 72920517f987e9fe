"""Position embeddings: the position of each token in the image.

Learned ones are parameters; fixed ones are sines and cosines of the position, computed when
needed and not saved in checkpoints. Most are added to the tokens. The relative and the rotary one
act inside attention instead. Registers have no position and get nothing.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vit_jax.core.axes import HEAD_SIZE, HEADS, MLP, POSITIONS, WIDTH
from vit_jax.core.errors import UserError
from vit_jax.core.pytrees import is_stacked
from vit_jax.core.token_layout import ROTARY_PARTS, TokenLayout
from vit_jax.models.layers.kernels.xla import Projected, scaled
from vit_jax.models.layers.linear import FLOAT32, Initializer, Linear, param

LONGEST = 10_000.0  # ratio of the longest wavelength to the shortest


class Positions(nnx.Module):
    """A position embedding; a subclass overrides one of the ways in which it may act."""

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, N, D] -> [B, N, D]: added to the tokens."""
        return x

    def on(self, layout: TokenLayout, width: int) -> "Positions":
        """The same for tokens of another layout and of this width: images of another size."""
        del layout, width
        return self

    def rotate(self, x: jax.Array) -> jax.Array:
        """[B, N, H, K] -> [B, N, H, K], applied to queries and to keys."""
        return x

    def bias(self, query: jax.Array) -> jax.Array | None:
        """Queries [B, N, H, K], scaled -> [B or 1, H, N, N], added to the logits of attention."""
        return None

    def inside(self, projected: Projected) -> Projected:
        """Attention's inputs with these positions, if they act there."""
        query, key = self.rotate(projected.query), self.rotate(projected.key)
        bias = self.bias(scaled(query))
        return projected._replace(query=query, key=key, bias=bias, qkv=None)


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
    places = resize_positions(table, old, new, method="bicubic_torch")
    return Table(new.pad_places(places))


class LearnedPositions(Positions):
    """A learned vector for each token of the 1-D sequence, class token first (section 3.1)."""

    def __init__(self, layout: TokenLayout, width: int, *, init: Initializer, rngs: nnx.Rngs):
        shape = (layout.num_places, width)
        self.embedding = param(init, shape, (POSITIONS, WIDTH), rngs.params())
        self.layout = layout

    def __call__(self, x: jax.Array) -> jax.Array:
        return x + self.layout.pad_places(self.embedding[...]).astype(x.dtype)

    def on(self, layout: TokenLayout, width: int) -> Positions:
        del width
        same = layout.grid == self.layout.grid
        return self if same else interpolated(self.embedding[...], self.layout, layout)


class Learned2dPositions(Positions):
    """A learned half for the patch's column and one for its row, side by side (appendix D.4).

    A class token, which has neither, gets zeros.
    """

    def __init__(self, layout: TokenLayout, width: int, *, init: Initializer, rngs: nnx.Rngs):
        rows, columns = layout.grid
        axes = (POSITIONS, WIDTH)
        self.columns = param(init, (columns, width // 2), axes, rngs.params())
        self.rows = param(init, (rows, width // 2), axes, rngs.params())
        self.layout = layout

    def __call__(self, x: jax.Array) -> jax.Array:
        return x + self.layout.pad_patches(self._patch_table()).astype(x.dtype)

    def on(self, layout: TokenLayout, width: int) -> Positions:
        del width
        if layout.grid == self.layout.grid:
            return self
        old, new = (x._replace(class_place=False) for x in (self.layout, layout))
        return interpolated(self._patch_table(), old, new)

    def _patch_table(self) -> jax.Array:
        """[rows * columns, D]."""
        row, column = np.indices(self.layout.grid).reshape(2, -1)
        return jnp.concatenate([self.columns[...][column], self.rows[...][row]], axis=-1)


class RelativePositions(Positions):
    """A learned key for each offset in the 1-D sequence, shared by all heads (appendix D.4).

    The query's product with it is added to the logits of attention, as in arXiv 1803.02155,
    section 3.2. Offset o, from -(N - 1) to N - 1, is the query's position minus the key's; its
    vector is in row o + N - 1.
    """

    def __init__(self, layout: TokenLayout, head_size: int, *, init: Initializer, rngs: nnx.Rngs):
        shape = (2 * layout.num_tokens - 1, head_size)
        self.offsets = param(init, shape, (POSITIONS, HEAD_SIZE), rngs.params())

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


class Relative2dPositions(Positions):
    """A learned bias of each head for each offset of rows and columns (BEiT, arXiv 2106.08254).

    Three more rows are for class token and registers: what they take from patches, patches from
    them, and they from each other.
    """

    def __init__(self, layout: TokenLayout, num_heads: int, *, init: Initializer, rngs: nnx.Rngs):
        self.prefix = layout.num_tokens - layout.num_patches
        shape = (num_offsets(layout.grid) + 3 * bool(self.prefix), num_heads)
        self.offsets = param(init, shape, (POSITIONS, HEADS), rngs.params())
        self.grid = layout.grid

    def bias(self, query: jax.Array) -> jax.Array:
        n, table = num_offsets(self.grid), offsets_2d(self.grid)
        table = np.pad(table, ((self.prefix, 0), (self.prefix, 0)))
        table[: self.prefix], table[:, : self.prefix] = n, n + 1
        table[: self.prefix, : self.prefix] = n + 2
        return jnp.moveaxis(self.offsets[...][table], 2, 0)[None].astype(query.dtype)


class RelativeMlpPositions(Positions):
    """A bias of each head by an MLP of the logarithms of both offsets (arXiv 2111.09883, 3.3).

    sign(o) log(1 + |o|) of offsets o in patches, and without bounds, as in timm's "cr". Class token
    and registers have none.

    Args:
      hidden: width of the MLP.
    """

    def __init__(
        self, layout: TokenLayout, num_heads: int, hidden: int, *, init: Initializer, rngs: nnx.Rngs
    ):
        dense = functools.partial(Linear, kernel_init=init, precision=FLOAT32, rngs=rngs)
        self.fc1 = dense((2,), (hidden,), (POSITIONS,), (MLP,))
        self.fc2 = dense((hidden,), (num_heads,), (MLP,), (HEADS,))
        self.layout = layout

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


class SinCosPositions(Positions):
    """Fixed sines of the position in the 1-D sequence, or of the patch's row and column."""

    def __init__(self, layout: TokenLayout, kind: str):
        self.layout, self.kind = layout, kind

    def __call__(self, x: jax.Array) -> jax.Array:
        return x + jnp.asarray(sincos(self.kind, self.layout, x.shape[-1]), x.dtype)

    def on(self, layout: TokenLayout, width: int) -> Positions:
        """Places between those of these patches; their own wavelengths would be other places."""
        old = self.layout._replace(registers=0)
        if layout.grid == old.grid:
            return self
        table = jnp.asarray(sincos(self.kind, old, width), jnp.float32)
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


class RotaryPositions(Positions):
    """RoPE (arXiv 2104.09864) in 2-D: queries and keys of patches rotated by their position.

    Class token and registers are not rotated. Coordinates and frequencies are a subclass's.
    """

    def __init__(self, layout: TokenLayout, base: float):
        self.layout, self.base = layout, base

    def on(self, layout: TokenLayout, width: int) -> Positions:
        """The same for another number of patches."""
        del width
        moved = nnx.merge(*nnx.split(self))
        moved.layout = layout
        return moved

    def angles(self, head_size: int) -> np.ndarray:
        """Radians for each pair of channels, [rows * columns, 1, K/2]."""
        raise NotImplementedError

    def rotate(self, x: jax.Array) -> jax.Array:
        """[B, N, H, K] -> [B, N, H, K]."""
        return self.turned(x, self.layout.pad_patches(self.angles(x.shape[-1])))

    def turned(self, x: jax.Array, table: np.ndarray | jax.Array) -> jax.Array:
        """Turns [B, N, H, K] by angles, [N, 1 or H, K/2]; one of 0 rotates nothing."""
        # Of a fixed table they are constants of the program.
        compute: Any = np if isinstance(table, np.ndarray) else jnp
        cos, sin = jnp.asarray(compute.cos(table)), jnp.asarray(compute.sin(table))
        first, second = self.pairs(x.astype(jnp.float32))
        return self.joined(first * cos - second * sin, second * cos + first * sin).astype(x.dtype)

    def pairs(self, x: jax.Array) -> Any:
        """[..., K] -> [..., K/2], [..., K/2]: entries i and i + K/2 are rotated as a pair."""
        return jnp.split(x, 2, axis=-1)

    def joined(self, first: jax.Array, second: jax.Array) -> jax.Array:
        """The reverse of `pairs`."""
        return jnp.concatenate([first, second], axis=-1)


class Rotary2dPositions(RotaryPositions):
    """Half of the angles follow the row and half the column ("axial"), as in DINOv3.

    Coordinates (arXiv 2508.10104) are the patches' centres between -1 and 1 along each side,
    whatever the image's size. DINOv3 shifts and scales them at random in training, which is not
    done here. It has no parameters, so it is the same in every layer.
    """

    def angles(self, head_size: int) -> np.ndarray:
        return rotary_angles(self.layout.grid, head_size, self.base)[:, None]


def rotary_angles(grid: tuple[int, int], head_size: int, base: float) -> np.ndarray:
    """Angles, float32 [rows * columns, K/2] in radians: K/4 for the row, K/4 for the column.

    2 pi c / base^(4i/K) for the coordinate c in (-1, 1) and i from 0 to K/4 - 1.
    """
    centres = [(2 * np.arange(n) + 1) / n - 1 for n in grid]
    y, x = np.meshgrid(*centres, indexing="ij")
    angles = [2 * np.pi * c.reshape(-1, 1) * rotary_frequencies(head_size, base) for c in (y, x)]
    return np.concatenate(angles, axis=1).astype(np.float32)


def rotary_frequencies(head_size: int, base: float) -> np.ndarray:
    """[K/4]: from 1 to nearly 1 / base."""
    return base ** -(np.arange(head_size // ROTARY_PARTS) * ROTARY_PARTS / head_size)


class NeighboursRotaryPositions(RotaryPositions):
    """Rotary positions whose coordinates are numbers of patches."""

    def pairs(self, x: jax.Array) -> Any:
        """[..., K] -> [..., K/2], [..., K/2]: entries 2i and 2i + 1 are rotated as a pair."""
        both = x.reshape(*x.shape[:-1], -1, 2)
        return both[..., 0], both[..., 1]

    def joined(self, first: jax.Array, second: jax.Array) -> jax.Array:
        both = jnp.concatenate([first[..., None], second[..., None]], axis=-1)
        return both.reshape(*first.shape[:-1], -1)


class AxialRotaryPositions(NeighboursRotaryPositions):
    """Half of the angles follow the number of the row and half that of the column.

    As in EVA-02 (arXiv 2303.11331), the Perception Encoder (2504.13181) and RoPE-Axial
    (2403.13298).

    Args:
      grid: rows and columns that the coordinates of any image are stretched to; 0: its own.
      offset: of the coordinates; the first is this number.
      columns_first: whether the first half follows the column.
    """

    def __init__(
        self, layout: TokenLayout, base: float, *, grid: int, offset: float, columns_first: bool
    ):
        super().__init__(layout, base)
        self.grid, self.offset, self.columns_first = grid, offset, columns_first

    def angles(self, head_size: int) -> np.ndarray:
        numbers = [(np.arange(n) + self.offset) * ((self.grid or n) / n) for n in self.layout.grid]
        y, x = np.meshgrid(*numbers, indexing="ij")
        order = (x, y) if self.columns_first else (y, x)
        frequencies = rotary_frequencies(head_size, self.base)
        angles = [c.reshape(-1, 1, 1) * frequencies for c in order]
        return np.concatenate(angles, axis=-1).astype(np.float32)


class MixedRotaryPositions(NeighboursRotaryPositions):
    """Each angle follows both, by two learned frequencies for each layer, head and pair.

    RoPE-Mixed (arXiv 2403.13298, section 3.2). The frequencies are parameters of blocks.
    """

    def inside_block(self, projected: Projected, frequencies: jax.Array) -> Projected:
        """Attention's inputs with a block's [2, H, K/2], of the column and of the row."""
        y, x = np.indices(self.layout.grid).reshape(2, -1, 1, 1).astype(np.float32)
        table = self.layout.pad_patches(x * frequencies[0] + y * frequencies[1])
        query, key = (self.turned(x, table) for x in projected[:2])
        return projected._replace(query=query, key=key, qkv=None)


def mixed_frequencies(key: Any, shape: tuple[int, ...], dtype: Any, *, base: float) -> jax.Array:
    """[2, H, K/2]: those of two axes, at right angles and turned at random, for each head."""
    _, heads, half = shape
    turn = 2 * jnp.pi * jax.random.uniform(key, (heads, 1))
    turns = jnp.concatenate([turn, turn + jnp.pi / 2])  # [2H, 1]
    frequencies = rotary_frequencies(2 * half, base) * jnp.stack([jnp.cos(turns), jnp.sin(turns)])
    halves = frequencies.reshape(2, 2, heads, half // 2)
    return jnp.moveaxis(halves, 1, 2).reshape(shape).astype(dtype)


# --- resizing of learned tables for images of another size (section 3.2)


def _by_jax(method: str, *, antialias: bool = False) -> Callable[..., jax.Array]:
    return functools.partial(jax.image.resize, method=method, antialias=antialias)


def _bicubic_torch(table: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """PyTorch's interpolate without antialias: a = -3/4, and outside it repeats the border."""
    for axis, (old, new) in enumerate(zip(table.shape[:-1], shape[:-1], strict=True)):
        centres = (np.arange(new) + 0.5) * old / new - 0.5
        first = np.floor(centres).astype(int) - 1
        weights = np.zeros((new, old))
        for tap in range(4):
            x = np.abs(centres - first - tap)
            near = (1.25 * x - 2.25) * x * x + 1
            far = -0.75 * (((x - 5) * x + 8) * x - 4)
            places = np.arange(new), np.clip(first + tap, 0, old - 1)
            np.add.at(weights, places, np.where(x <= 1, near, far))
        moved = jnp.tensordot(
            jnp.asarray(weights, table.dtype), table, (1, axis), precision="highest"
        )
        table = jnp.moveaxis(moved, 0, axis)
    return table


# (table [..., D], shape) -> a table of this shape. With antialias, PyTorch's is "bicubic" too.
METHODS = {
    "bilinear": _by_jax("linear"),
    "bicubic": _by_jax("cubic"),
    "bicubic_antialias": _by_jax("cubic", antialias=True),
    "bicubic_torch": _bicubic_torch,
}
TABLES = ("embedding", "rows", "columns")  # in LearnedPositions and Learned2dPositions


def is_table(name: str) -> bool:
    """Whether the parameter of this name can be resized, in the blocks or outside of them."""
    *_, parent, leaf = ("", *name.split("/"))
    return parent == "positions" and leaf in TABLES


def places_axis(name: str) -> int:
    """The axis of such a parameter that counts positions."""
    return int(is_stacked(name))


def is_offsets(name: str) -> bool:
    """Returns whether the parameter of this name is of offsets, which are for one grid."""
    return name.endswith("positions/offsets")


def check_resizable(
    name: str, old: tuple[int, ...], new: tuple[int, ...], *, same_grid: bool
) -> None:
    """Raises UserError for a parameter that images of another size need resized, and cannot be.

    Args:
      name: of the parameter.
      old, new: its shapes.
      same_grid: whether the patches have as many rows and columns in both.
    """
    fits = old == new and (same_grid or not is_offsets(name))
    if not fits and not is_table(name):
        raise UserError(f"{name} cannot be resized: keep the image size of the weights.")


def resize(
    name: str, table: jax.Array, old: TokenLayout, new: TokenLayout, *, method: str
) -> jax.Array:
    """The parameter of this name, for which `is_table` holds, resized to the layout `new`."""
    leaf = name.rpartition("/")[2]

    def one(table: jax.Array) -> jax.Array:
        if leaf == "embedding":
            return resize_positions(table, old, new, method=method)
        shape = (new.grid[leaf == "columns"], table.shape[1])
        return METHODS[method](table, shape)

    return (jax.vmap(one) if is_stacked(name) else one)(table)


def resize_positions(
    table: jax.Array, old: TokenLayout, new: TokenLayout, *, method: str
) -> jax.Array:
    """[N, D] in the layout `old` -> [N', D] in `new`, by interpolation over the grid of patches.

    Patches are placed at their centres in the image, whatever their number; outside the old centres
    the outermost values are extended. Most methods do not antialias when the grid gets smaller. The
    class token's row is kept, or left out if `new` has none; `old` must have one if `new` has.
    """
    assert old.first_places or not new.first_places
    first, patches = table[: new.first_places], table[old.first_places :]
    if old.grid != new.grid:
        width = table.shape[1]
        grid = METHODS[method](patches.reshape(*old.grid, width), (*new.grid, width))
        patches = grid.reshape(-1, width)
    return jnp.concatenate([first, patches])
