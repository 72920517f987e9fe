"""Resizing of learned position tables for images of another size (section 3.2)."""

import jax
import jax.numpy as jnp

from vit_jax.core.errors import UserError
from vit_jax.core.pytrees import is_stacked
from vit_jax.nn.posemb import TokenLayout

METHODS = {"bilinear": "linear", "bicubic": "cubic"}  # jax.image's names
TABLES = ("embedding", "rows", "columns")  # in LearnedPositions and Learned2dPositions


def is_table(name: str) -> bool:
    """Whether the parameter of this name can be resized, in the blocks or outside of them."""
    *_, parent, leaf = ("", *name.split("/"))
    return parent == "positions" and leaf in TABLES


def places_axis(name: str) -> int:
    """The axis of such a parameter that counts positions."""
    return int(is_stacked(name))


def check_resizable(name: str, old: tuple[int, ...], new: tuple[int, ...]) -> None:
    """Raises UserError for a parameter of another shape that cannot be resized."""
    if old != new and not is_table(name):
        raise UserError(
            f"{name} has the shape {old}, for images of this size it would be {new}, and it cannot "
            "be resized: offsets in the sequence of patches (model.position_embedding=relative) "
            "mean something else in another one. Keep the image size of the weights."
        )


def resize(
    name: str, table: jax.Array, old: TokenLayout, new: TokenLayout, *, method: str
) -> jax.Array:
    """The parameter of this name, for which `is_table` holds, resized to the layout `new`."""
    leaf = name.rpartition("/")[2]

    def one(table: jax.Array) -> jax.Array:
        if leaf == "embedding":
            return resize_positions(table, old, new, method=method)
        shape = (new.grid[leaf == "columns"], table.shape[1])
        return jax.image.resize(table, shape, METHODS[method], antialias=False)

    return (jax.vmap(one) if is_stacked(name) else one)(table)


def resize_positions(
    table: jax.Array, old: TokenLayout, new: TokenLayout, *, method: str
) -> jax.Array:
    """[N, D] in the layout `old` -> [N', D] in `new`, by interpolation over the grid of patches.

    Patches are placed at their centres in the image, whatever their number; outside the old centres
    the outermost values are extended. Nothing is antialiased when the grid gets smaller. The
    class token's row is kept, or left out if `new` has none; `old` must have one if `new` has.
    """
    assert old.first_places or not new.first_places
    first, patches = table[: new.first_places], table[old.first_places :]
    if old.grid != new.grid:
        width = table.shape[1]
        patches = jax.image.resize(
            patches.reshape(*old.grid, width), (*new.grid, width), METHODS[method], antialias=False
        ).reshape(-1, width)
    return jnp.concatenate([first, patches])
