"""The order of a ViT's tokens."""

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

if TYPE_CHECKING:
    import jax

Table = TypeVar("Table", "jax.Array", np.ndarray)

ROTARY_PARTS = 4  # of a head's channels: sines and cosines of rows and of columns


class TokenParts(NamedTuple):
    """An array over tokens, [..., N], by their kinds."""

    class_token: Any  # [..., 1], or [..., 0] without one
    registers: Any  # [..., R]
    patches: Any  # [..., rows, columns]


class TokenLayout(NamedTuple):
    """The order of the N tokens: class token, registers, then patches row by row."""

    grid: tuple[int, int]  # (rows, columns) of patches
    class_token: bool  # whether there is one
    registers: int = 0  # how many
    # Whether the class token has a position in the 1-D sequence, before the patches.
    class_place: bool = True

    @property
    def num_patches(self) -> int:
        """Rows times columns."""
        return self.grid[0] * self.grid[1]

    @property
    def num_places(self) -> int:
        """Tokens with a position in the 1-D sequence: the class token and the patches."""
        return self.first_places + self.num_patches

    @property
    def first_places(self) -> int:
        """Positions before the patches: 1 for a class token, or 0."""
        return int(self.class_token and self.class_place)

    @property
    def num_tokens(self) -> int:
        """N, class token and registers included."""
        return self.num_patches + self.class_token + self.registers

    def split(self, x: Table) -> TokenParts:
        """[..., N] -> its parts by the kind of the token."""
        first = self.num_tokens - self.num_patches
        patches = x[..., first:].reshape(*x.shape[:-1], *self.grid)
        return TokenParts(x[..., : self.class_token], x[..., self.class_token : first], patches)

    def pad_patches(self, table: Table) -> Table:
        """[patches, ...] -> [N, ...] with zeros for all other tokens."""
        return _insert_zeros(table, 0, self.num_tokens - self.num_patches)

    def pad_places(self, table: Table) -> Table:
        """[places, ...] -> [N, ...] with zeros for tokens that have none."""
        return _insert_zeros(table, self.first_places, self.num_tokens - self.num_places)


def _insert_zeros(table: Table, start: int, rows: int) -> Table:
    if not rows:
        return table
    first, rest = table[:start], table[start:]
    padded = _of(table).pad(rest, ((rows, 0), *((0, 0),) * (table.ndim - 1)))
    return _of(table).concatenate([first, padded])


def _of(table: Any) -> Any:
    """The module to compute with: NumPy for a fixed table, which becomes a constant."""
    if isinstance(table, np.ndarray):
        return np
    import jax.numpy as jnp  # a config asks only for numbers of tokens

    return jnp
