"""Which patches are masked: exactly so many of each image, at random."""

import jax
import jax.numpy as jnp

from vit_jax.core.errors import UserError


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
