"""Learned tables of positions, resized for images of another size (section 3.2)."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.core.errors import UserError
from vit_jax.core.pytrees import is_stacked
from vit_jax.core.token_layout import TokenLayout


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
# In LearnedPositions, Learned2dPositions and Relative2dPositions.
TABLES = ("embedding", "rows", "columns", "offsets_2d")


def is_table(name: str) -> bool:
    """Whether the parameter of this name can be resized, in the blocks or outside of them."""
    *_, parent, leaf = ("", *name.split("/"))
    return parent == "positions" and leaf in TABLES


def places_axis(name: str) -> int:
    """The axis of such a parameter that counts positions."""
    return int(is_stacked(name))


def is_offsets(name: str) -> bool:
    """Whether a parameter's name is that of the sequence's offsets, which are for one grid."""
    return name.endswith("positions/offsets")


def check_resizable(
    name: str, old: tuple[int, ...], new: tuple[int, ...], *, same_grid: bool
) -> None:
    """Raises UserError for a parameter that images of another size need resized, and cannot be."""
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
        if leaf == "offsets_2d":
            return resize_offsets(table, old, new)
        shape = (new.grid[leaf == "columns"], table.shape[1])
        return METHODS[method](table, shape)

    return (jax.vmap(one) if is_stacked(name) else one)(table)


def resize_offsets(table: jax.Array, old: TokenLayout, new: TokenLayout) -> jax.Array:
    """Biases of offsets [O, H] in the layout `old` -> [O', H] in `new`, as BEiT's code and timm do.

    Old offsets are placed among the new ones in geometric progression, close together where they
    are small, and what is between them is interpolated linearly.
    """
    down, right = map(_offset_weights, old.grid, new.grid)
    count, prefix = down.shape[1] * right.shape[1], 3 * (new.num_tokens > new.num_patches)
    pairs, rest = table[:count], table[count : count + prefix]
    if old.grid != new.grid:
        square = pairs.reshape(down.shape[1], right.shape[1], -1)
        pairs = jnp.einsum("ab,cd,bdh->ach", down, right, square, precision="highest")
        pairs = pairs.reshape(-1, pairs.shape[-1])
    return jnp.concatenate([pairs, rest])


def _offset_weights(old: int, new: int) -> np.ndarray:
    """[2 new - 1, 2 old - 1]: the weights of old offsets along an axis in each new one."""
    low, high = 1.01, 1.5
    while high - low > 1e-6:  # the ratio by which the last of the old offsets is the last new one
        ratio = (low + high) / 2
        low, high = (low, ratio) if sum(ratio ** np.arange(old - 1)) > new - 1 else (ratio, high)
    steps = np.cumsum(ratio ** np.arange(old - 1))
    places, targets = np.concatenate([-steps[::-1], [0], steps]), np.arange(1 - new, new)
    return np.stack([np.interp(targets, places, row) for row in np.eye(2 * old - 1)], axis=1)


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
