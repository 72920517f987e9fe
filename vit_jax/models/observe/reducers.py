"""What can be kept of attention: rollout, distances, chosen weights, norms of tokens."""

import dataclasses
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.core.errors import UserError
from vit_jax.core.token_layout import TokenParts
from vit_jax.models.family import check_layers
from vit_jax.models.observe.layers import End, Layer, Reducer, View, look
from vit_jax.probes import attention as rules


class _OfLayers:
    """A reducer whose result is what each layer gave, [B, L, ...]."""

    def check(self, view: View) -> None:
        """Everything can be asked for."""

    def start(self, view: View, batch: int) -> Any:
        """Nothing is carried."""
        return ()

    def finish(self, view: View, carried: Any, kept: Any, end: End) -> Any:
        """The axis of layers behind that of images."""
        return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), kept)


@dataclasses.dataclass(frozen=True)
class Rollout(_OfLayers):
    """TokenParts of [B, N]: how much the head's input has taken from each token.

    Attention rollout (probes/attention.py) of what the head sees: of the class token's row;
    without one, the mean over the patches' rows, and with attention pooling their mean weighted by
    the probe's attention; for `cls_avg` half class token, half patches. The parts of one image sum
    to 1 together.
    """

    def start(self, view: View, batch: int) -> jax.Array:
        """The identity, [B, N, N]."""
        n = view.tokens.num_tokens
        return jnp.broadcast_to(jnp.eye(n, dtype=jnp.float32), (batch, n, n))

    def step(self, view: View, carried: jax.Array, layer: Layer) -> tuple[jax.Array, None]:
        """Multiplies by one layer."""
        return rules.rollout([carried, rules.with_residual(layer.weights)]), None

    def finish(self, view: View, carried: jax.Array, kept: Any, end: End) -> TokenParts:
        """Takes the rows that the head sees."""
        return view.tokens.split(jnp.einsum("bq,bqk->bk", end.reads, carried))


@dataclasses.dataclass(frozen=True)
class Distances(_OfLayers):
    """[B, L, H]: each head's mean attention distance in pixels (probes/attention.py).

    Among patches: class token and registers are neither queries nor keys.
    """

    def step(self, view: View, carried: Any, layer: Layer) -> tuple[Any, jax.Array]:
        """[B, H]"""
        layout = view.tokens
        first = layout.num_tokens - layout.num_patches
        distances = rules.patch_distances(layout.grid, view.pixels_per_patch)
        of_patches = layer.weights[:, :, first:, first:]
        return carried, rules.mean_distance(of_patches, jnp.asarray(distances, jnp.float32))


@dataclasses.dataclass(frozen=True)
class FromQuery(_OfLayers):
    """TokenParts of [B, L, H, N]: where one token looks, in every layer and head.

    Attributes:
      query: (row, column) of a patch, from 0; or "class", or ("register", r).
    """

    query: Any = "class"

    def __post_init__(self) -> None:
        if isinstance(self.query, list):
            object.__setattr__(self, "query", tuple(self.query))

    def check(self, view: View) -> None:
        """UserError for a token that the model does not have."""
        self._index(view)

    def step(self, view: View, carried: Any, layer: Layer) -> tuple[Any, jax.Array]:
        """[B, H, N]"""
        return carried, layer.weights[:, :, self._index(view)]

    def finish(self, view: View, carried: Any, kept: Any, end: End) -> TokenParts:
        """The axis of layers behind that of images, and the kinds of tokens apart."""
        return view.tokens.split(super().finish(view, carried, kept, end))

    def _index(self, view: View) -> int:
        layout = view.tokens
        if self.query == "class":
            if not layout.class_token:
                raise UserError(
                    "The model has no class token to look from: give a patch as (row, column), of "
                    f"{layout.grid[0]} rows and {layout.grid[1]} columns."
                )
            return 0
        try:
            row, column = self.query
        except (TypeError, ValueError):
            row, column = None, None
        if row == "register" and column in range(layout.registers):
            return layout.class_token + column
        if row in range(layout.grid[0]) and column in range(layout.grid[1]):
            first = layout.num_tokens - layout.num_patches
            return first + row * layout.grid[1] + column
        raise UserError(
            f"No token {self.query!r} to look from: a patch is (row, column) with row 0 to "
            f"{layout.grid[0] - 1} and column 0 to {layout.grid[1] - 1}, or take "
            f"{_others(layout.class_token, layout.registers)}."
        )


def _others(class_token: bool, registers: int) -> str:
    names = ['"class"'] if class_token else []
    names += [f'("register", 0 to {registers - 1})'] if registers else []
    return " or ".join(names) or "a patch"


@dataclasses.dataclass(frozen=True)
class Weights(_OfLayers):
    """[B, len(layers), H, N, N]: all weights of these layers, from 0; large."""

    layers: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(self.layers))

    def check(self, view: View) -> None:
        """UserError for a layer that the model does not have."""
        check_layers(self.layers, view.depth)

    def start(self, view: View, batch: int) -> jax.Array:
        """Places for the weights."""
        n = view.tokens.num_tokens
        return jnp.zeros((batch, len(self.layers), view.num_heads, n, n), jnp.float32)

    def step(self, view: View, carried: jax.Array, layer: Layer) -> tuple[jax.Array, None]:
        """Fills in the places of this layer."""
        mine = jnp.asarray(self.layers) == layer.number
        return jnp.where(mine[:, None, None, None], layer.weights[:, None], carried), None

    def finish(self, view: View, carried: jax.Array, kept: Any, end: End) -> jax.Array:
        """What was filled in."""
        return carried


class Norms(NamedTuple):
    """Euclidean norms of tokens, to find outliers (probes/attention.py).

    Attributes:
      blocks: TokenParts of [B, L, N]: after each block, before any norm; where arXiv 2309.16588
        looks is the last of them.
      output: TokenParts of [B, N]: after the last norm.
    """

    blocks: TokenParts
    output: TokenParts


@dataclasses.dataclass(frozen=True)
class TokenNorms(_OfLayers):
    """Norms: how large each token is after each block, class token and registers apart."""

    def step(self, view: View, carried: Any, layer: Layer) -> tuple[Any, jax.Array]:
        """[B, N]"""
        return carried, _norms(layer.tokens)

    def finish(self, view: View, carried: Any, kept: jax.Array, end: End) -> Norms:
        """The axis of layers behind that of images, and the kinds of tokens apart."""
        of_blocks = view.tokens.split(super().finish(view, carried, kept, end))
        return Norms(of_blocks, view.tokens.split(_norms(end.tokens)))


def _norms(x: jax.Array) -> jax.Array:
    return jnp.linalg.norm(x.astype(jnp.float32), axis=-1)


def rollout(model: Any, images: Iterable[np.ndarray]) -> TokenParts:
    """Rollout alone; errors as of `look`."""
    return _one(model, images, Rollout())


def attention_distance(model: Any, images: Iterable[np.ndarray]) -> np.ndarray:
    """Distances alone, [B, L, H] in pixels; errors as of `look`."""
    return _one(model, images, Distances())


def token_norms(model: Any, images: Iterable[np.ndarray]) -> Norms:
    """TokenNorms alone; errors as of `look`."""
    return _one(model, images, TokenNorms())


def _one(model: Any, images: Iterable[np.ndarray], reducer: Reducer) -> Any:
    return look(model, images, (reducer,)).results[0]
