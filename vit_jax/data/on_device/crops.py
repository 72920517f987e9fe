"""Crops and flips in JAX: of uint8 [H, W, 3] and numbers in [0, 1), uint8 [h, w, 3].

Each gives the pixels of the op of this name in data/ops/decode.py, bit for bit.
"""

import jax
import jax.numpy as jnp


def flip_lr(pixels: jax.Array, draws: jax.Array) -> jax.Array:
    """Mirrors along the width if the one number is below a half."""
    return jnp.where(draws[0] < 0.5, pixels[:, ::-1], pixels)


def pad_crop(
    pixels: jax.Array, draws: jax.Array, *, size: tuple[int, int], padding: int, reflect: bool
) -> jax.Array:
    """The window of the padded image at the place that two numbers say."""
    margins = ((padding, padding), (padding, padding), (0, 0))
    padded = jnp.pad(pixels, margins, mode="reflect" if reflect else "constant")
    room = [side - wanted + 1 for side, wanted in zip(padded.shape, size, strict=False)]
    begin = (draws * jnp.array(room, jnp.float32)).astype(jnp.int32)
    return jax.lax.dynamic_slice(padded, (begin[0], begin[1], 0), (*size, 3))
