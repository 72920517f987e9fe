"""The pixels of patches, as targets."""

import jax
import jax.numpy as jnp

from vit_jax.nn.patches import whole_patches

COLOURS = 512  # 3 bits for each channel


def cut(images: jax.Array, patch_size: int) -> jax.Array:
    """[B, H, W, 3] -> [B, N, P, P, 3], row by row; of whole patches."""
    p = patch_size
    images = whole_patches(images, p)
    b, h, w, c = images.shape
    x = images.reshape(b, h // p, p, w // p, p, c).transpose(0, 1, 3, 2, 4, 5)
    return x.reshape(b, -1, p, p, c)


def mean_colours(patches: jax.Array) -> jax.Array:
    """uint8 pixels [..., P, P, 3] -> int32 [...] below COLOURS: their mean in 3 bits a channel.

    Each channel's mean in [0, 1] is put into one of 8 equal bins; red's is the slowest. Exact for
    patches of up to 1,024 pixels a side.
    """
    total = jnp.sum(patches.astype(jnp.int32), axis=(-3, -2))
    most = 255 * patches.shape[-3] * patches.shape[-2]
    level = jnp.minimum(8 * total // most, 7)
    return level[..., 0] * 64 + level[..., 1] * 8 + level[..., 2]


def cells(patches: jax.Array, side: int) -> jax.Array:
    """[..., P, P, 3] -> [..., side * side, P / side, P / side, 3]: each patch cut again."""
    *first, p, _, c = patches.shape
    n = p // side
    x = patches.reshape(*first, side, n, side, n, c)
    x = jnp.swapaxes(x, -4, -3)
    return x.reshape(*first, side * side, n, n, c)
