"""2-D rotary position embedding: queries and keys of patches turned by angles of their place.

RoPE is from arXiv 2104.09864. For images, half of the angles follow the row and half the column
("axial"); coordinates and frequencies are those of DINOv3 (arXiv 2508.10104): the patches' centres
between -1 and 1 along each side, whatever the image's size. DINOv3 shifts and stretches them at
random in training, which is not done here.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.nn.posemb import Positions, TokenLayout

BASE = 100.0  # of the frequencies: the slowest is nearly 1 / BASE of the fastest
PARTS = 4  # a head's size is cut into as many: sines and cosines of rows and of columns


class Rotary2dPositions(Positions):
    """Class token and registers are not turned. Without parameters, so the same in every layer."""

    def __init__(self, layout: TokenLayout):
        self.layout = layout

    def rotate(self, x: jax.Array) -> jax.Array:
        """[B, N, H, K] -> [B, N, H, K]: entries i and i + K/2 are a pair that is turned."""
        # An angle of 0 turns nothing.
        table = self.layout.pad_patches(angles(self.layout.grid, x.shape[-1]))[:, None]
        cos, sin = jnp.asarray(np.cos(table)), jnp.asarray(np.sin(table))
        first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
        turned = [first * cos - second * sin, second * cos + first * sin]
        return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def angles(grid: tuple[int, int], head_size: int) -> np.ndarray:
    """float32 [rows * columns, K/2] in radians: K/4 of the row, then K/4 of the column.

    2 pi c / BASE^(4i/K) for the coordinate c in (-1, 1) and i from 0 to K/4 - 1.
    """
    frequencies = BASE ** -(np.arange(head_size // PARTS) * PARTS / head_size)
    centres = [(2 * np.arange(n) + 1) / n - 1 for n in grid]
    y, x = np.meshgrid(*centres, indexing="ij")
    of_each = [2 * np.pi * c.reshape(-1, 1) * frequencies for c in (y, x)]
    return np.concatenate(of_each, axis=1).astype(np.float32)
