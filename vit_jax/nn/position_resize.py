"""A learned table of positions for images of another size (section 3.2)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from vit_jax.nn.posemb import TokenLayout

METHODS = {"bilinear": "linear", "bicubic": "cubic"}  # jax.image's names


def resize_positions(
    table: jax.Array, old: TokenLayout, new: TokenLayout, *, method: str
) -> jax.Array:
    """[N, D] of the layout `old` -> [N', D] of `new`, by interpolation over the grid of patches.

    A patch is where its centre is in the image, whatever the number of patches; outside of the old
    centres the outermost values go on. Nothing is smoothed where the grid gets smaller. The class
    token's row stays, or is left out if `new` has none; `old` has to have one if `new` has.
    """
    assert old.class_token or not new.class_token
    first, patches = table[: new.class_token], table[old.class_token :]
    if old.grid != new.grid:
        width = table.shape[1]
        patches = jax.image.resize(
            patches.reshape(*old.grid, width), (*new.grid, width), METHODS[method], antialias=False
        ).reshape(-1, width)
    return jnp.concatenate([first, patches])
