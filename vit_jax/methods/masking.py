"""Which patches are masked: exactly so many of each image, at random."""

import jax
import jax.numpy as jnp

from vit_jax.core.errors import UserError

_LONGEST_SIDES = 10 / 3  # of a block, by the other sides


def number(fraction: float, num_patches: int, field: str) -> int:
    """How many of the patches are masked. UserError unless some are, and some are not."""
    masked = round(fraction * num_patches)
    if not 0 < masked < num_patches:
        least, most = 1 / num_patches, 1 - 1 / num_patches
        raise UserError(
            f"{field}={fraction:g} masks {masked} of {num_patches} patches, but some have to be "
            f"masked and some not: give {least:.3g} to {most:.3g}, or larger images, or smaller "
            "patches."
        )
    return masked


def order(key: jax.Array, batch_size: int, num_patches: int) -> jax.Array:
    """int32 [B, N]: a random order of each image's patches; the last ones are to be masked."""
    return jnp.argsort(jax.random.uniform(key, (batch_size, num_patches)), axis=1)


def places(order: jax.Array) -> jax.Array:
    """[B, N] -> [B, N]: where each patch is in the order; the inverse permutation."""
    return jnp.argsort(order, axis=1)


def block_order(key: jax.Array, batch_size: int, grid: tuple[int, int]) -> jax.Array:
    """int32 [B, N]: as `order`, but the last so many are a block of each image, at random.

    A block of random place and shape, with sides in a ratio of up to 10 to 3 as in arXiv
    2106.08254, that reaches beyond no border: those of its patches are elsewhere around it.
    """
    of_row, of_column, of_shape = jax.random.split(key, 3)
    centre = lambda key, n: jax.random.uniform(key, (batch_size, 1), maxval=n)
    y, x = (jnp.asarray(each, jnp.float32) + 0.5 for each in jnp.indices(grid).reshape(2, 1, -1))
    limit = jnp.log(_LONGEST_SIDES) / 2
    shape = jnp.exp(jax.random.uniform(of_shape, (batch_size, 1), minval=-limit, maxval=limit))
    rows = jnp.abs(y - centre(of_row, grid[0])) * shape
    columns = jnp.abs(x - centre(of_column, grid[1])) / shape
    return jnp.argsort(-jnp.maximum(rows, columns), axis=1)
