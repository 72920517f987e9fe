"""Rotary positions (RoPE): queries and keys of patches, rotated by the patch's place."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vit_jax.core.axes import HEAD_SIZE, HEADS, POSITIONS
from vit_jax.core.token_layout import ROTARY_PARTS, TokenLayout
from vit_jax.models.layers.block import Block, BlockSpec, SharingBlock
from vit_jax.models.layers.kernels.xla import Projected
from vit_jax.models.layers.linear import param
from vit_jax.models.layers.posemb import Positions


class RotaryPositions(Positions):
    """RoPE (arXiv 2104.09864) in 2-D: queries and keys of patches rotated by their position.

    Class token and registers are not rotated. Coordinates and frequencies are a subclass's.
    """

    def __init__(self, spec: Any, layout: TokenLayout, rngs: nnx.Rngs):
        super().__init__(spec, layout)
        self.base, self.columns_first = spec.rotary_base, spec.rotary_columns_first

    def on(self, layout: TokenLayout) -> Positions:
        """The same for another number of patches."""
        moved = nnx.merge(*nnx.split(self))
        moved.layout = layout
        return moved

    def places(self, number: int) -> np.ndarray:
        """The coordinates of so many rows, or columns."""
        raise NotImplementedError

    def angles(self, head_size: int) -> np.ndarray:
        """Radians for each pair of channels, float32 [rows * columns, 1, K/2]: half for each side.

        c / base^(4i/K) for the coordinate c and i from 0 to K/4 - 1.
        """
        y, x = np.meshgrid(*map(self.places, self.layout.grid), indexing="ij")
        order = (x, y) if self.columns_first else (y, x)
        frequencies = rotary_frequencies(head_size, self.base)
        angles = [c.reshape(-1, 1, 1) * frequencies for c in order]
        return np.concatenate(angles, axis=-1).astype(np.float32)

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

    def places(self, number: int) -> np.ndarray:
        return 2 * np.pi * ((2 * np.arange(number) + 1) / number - 1)


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
    """

    def __init__(self, spec: Any, layout: TokenLayout, rngs: nnx.Rngs):
        super().__init__(spec, layout, rngs)
        self.grid, self.offset = spec.rotary_grid, spec.rotary_offset

    def places(self, number: int) -> np.ndarray:
        return (np.arange(number) + self.offset) * ((self.grid or number) / number)


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


class MixedRotaryBlock(SharingBlock):
    """A block with frequencies of its own, for the rotary positions that all share."""

    def __init__(self, spec: BlockSpec, *, rngs: nnx.Rngs, **arguments: Any):
        super().__init__(spec, rngs=rngs, **arguments)
        shape = (2, spec.num_heads, spec.width // spec.num_heads // 2)
        init = functools.partial(mixed_frequencies, base=spec.rotary_base)
        self.frequencies = param(init, shape, (POSITIONS, HEADS, HEAD_SIZE), rngs.params())

    def project(self, normed: jax.Array) -> Projected:
        assert isinstance(self.positions, MixedRotaryPositions)
        projected = Block.project(self, normed)
        return self.positions.inside_block(projected, self.frequencies[...])


def mixed_frequencies(key: Any, shape: tuple[int, ...], dtype: Any, *, base: float) -> jax.Array:
    """[2, H, K/2]: those of two axes, at right angles and turned at random, for each head."""
    _, heads, half = shape
    turn = 2 * jnp.pi * jax.random.uniform(key, (heads, 1))
    turns = jnp.concatenate([turn, turn + jnp.pi / 2])  # [2H, 1]
    frequencies = rotary_frequencies(2 * half, base) * jnp.stack([jnp.cos(turns), jnp.sin(turns)])
    halves = frequencies.reshape(2, 2, heads, half // 2)
    return jnp.moveaxis(halves, 1, 2).reshape(shape).astype(dtype)
