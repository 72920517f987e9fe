"""Crops and flips: uint8 [H, W, 3] and a seed, uint32 [4] -> uint8 [h, w, 3].

Each gives the pixels of the op of this name in data/ops/decode.py, bit for bit.
"""

import jax
import jax.numpy as jnp

from vit_jax.data.on_device import philox


def flip_lr(pixels: jax.Array, seed: jax.Array) -> jax.Array:
    """Mirrors along the width, every second image on average."""
    return jnp.where(philox.uniform(seed, 1)[0] < 0.5, pixels[:, ::-1], pixels)


def pad_crop(
    pixels: jax.Array, seed: jax.Array, *, size: tuple[int, int], padding: int, reflect: bool
) -> jax.Array:
    """A random window of the padded image."""
    margins = ((padding, padding), (padding, padding), (0, 0))
    padded = jnp.pad(pixels, margins, mode="reflect" if reflect else "constant")
    room = [side - wanted + 1 for side, wanted in zip(padded.shape, size, strict=False)]
    begin = (philox.uniform(seed, 2) * jnp.array(room, jnp.float32)).astype(jnp.int32)
    return jax.lax.dynamic_slice(padded, (begin[0], begin[1], 0), (*size, 3))
