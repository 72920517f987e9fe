"""A pass through a ViT that shows each layer's attention to reducers, and keeps none of it."""

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vit_jax.core.errors import UserError
from vit_jax.core.token_layout import TokenLayout, TokenParts
from vit_jax.models.family import check_layers
from vit_jax.models.observe.chunks import MEMORY_BYTES, chunk_size, in_chunks
from vit_jax.probes import attention as rules


class View(NamedTuple):
    """The sizes of a model's attention."""

    tokens: TokenLayout  # their layout
    pixels_per_patch: tuple[int, int]  # (height, width) in the image; hybrids too
    depth: int  # L, the number of layers: of attentions, two in each block of an Axial-ViT
    num_heads: int  # H


class Layer(NamedTuple):
    """One block."""

    number: jax.Array  # which, from 0: an int32 scalar of JAX
    weights: jax.Array  # [B, H, N, N] float32; row q is how much token q takes from each token
    tokens: jax.Array  # [B, N, D] that leave it


class End(NamedTuple):
    """The part of a model behind the last block."""

    tokens: jax.Array  # [B, N, D] after the last norm
    # [B, N] float32, how much the head's input takes from each of these; rows sum to 1.
    reads: jax.Array


class Reducer:
    """A rule for what to keep of each layer in place of its weights. Hashable; traced by JAX.

    The answers here are of one that carries nothing, and keeps a result of each layer, [B, L, ...].
    """

    def check(self, view: View) -> None:
        """Raises UserError for a model that does not have what the reducer reads."""

    def start(self, view: View, batch: int) -> Any:
        """The tree of arrays that is carried from layer to layer, before the first one."""
        return ()

    def step(self, view: View, carried: Any, layer: Layer) -> tuple[Any, Any]:
        """(what is carried on, what is kept of this layer)."""
        raise NotImplementedError

    def finish(self, view: View, carried: Any, kept: Any, end: End) -> Any:
        """The result, arrays [B, ...]; kept: as from `step`, with an axis L before all others."""
        return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), kept)


class Observed(NamedTuple):
    """The results of a pass."""

    logits: np.ndarray  # [B, C] float32, as of model(images); headless: features [B, D]
    results: tuple[Any, ...]  # of the reducers, in their order


def look(
    model: Any,
    images: Iterable[np.ndarray],
    reducers: tuple[Reducer, ...],
    *,
    memory_bytes: int = MEMORY_BYTES,
) -> Observed:
    """Looks at images through a ViT or hybrid, once for all reducers.

    One block is compiled, and run for each layer. Of weights no more than a chunk's of one layer
    are in memory.

    Args:
      images: [B, H, W, 3] float32, normalised, or one [H, W, 3] after the other.
      memory_bytes: sets the number of images in a chunk; the model comes on top.
    """
    view = view_of(model)
    for reducer in reducers:
        reducer.check(view)
    graph, state = nnx.split(model)
    return in_chunks(
        lambda part, _: one_pass(graph, tuple(reducers), view, state, part),
        model,
        images,
        chunk_size(model, memory_bytes),
    )


def view_of(model: Any) -> View:
    """The sizes of a model's attention. UserError for a model without any."""
    if not has_attention(model):
        raise UserError(f"This {type(model).__name__} has no attention: take a ViT or a hybrid.")
    spec = model.spec
    layout = spec.token_layout(model.preprocess.image_size)
    depth = spec.depth * len(model.blocks.block.attention_blocks)
    return View(layout, (spec.stride, spec.stride), depth, spec.num_heads)


def seen_pixels(model: Any, photos: np.ndarray) -> np.ndarray:
    """Photos [B, H, W, 3] without what `crop_to_patches` leaves out: no patch has these pixels."""
    spec = model.spec
    height, width = (n * spec.stride for n in spec.token_layout(model.preprocess.image_size).grid)
    return photos[:, :height, :width]


def has_attention(model: Any) -> bool:
    """Returns whether the model has blocks of attention over tokens: ConvNets do not."""
    return hasattr(model, "blocks")


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def one_pass(
    graph: Any, reducers: tuple[Reducer, ...], view: View, state: Any, images: jax.Array
) -> Observed:
    """`look` at one chunk; graph, state: the model, as nnx.split gives it."""
    model = nnx.merge(graph, state)
    block_graph, params = nnx.split(model.blocks.block)

    def step(carry: Any, each: Any) -> tuple[Any, Any]:
        (x, carried), all_kept = carry, []
        number, own = each
        blocks = complete(nnx.merge(block_graph, own)).attention_blocks
        for i, block in enumerate(blocks):
            # Beside the block's own computation, whose numbers so stay what they are. XLA merges
            # what is the same in both.
            weights = block.attention_weights(x)
            x = block(x)
            layer = Layer(number * len(blocks) + i, weights, x)
            stepped = [r.step(view, c, layer) for r, c in zip(reducers, carried, strict=True)]
            carried = tuple(c for c, _ in stepped)
            all_kept.append(tuple(kept for _, kept in stepped))
        return (x, carried), jax.tree.map(lambda *of_each: jnp.stack(of_each), *all_kept)

    start = tuple(r.start(view, images.shape[0]) for r in reducers)
    layers, x = (jnp.arange(model.spec.depth), params), model.embed(images)
    complete = model.completing(x)
    (x, carried), kept = jax.lax.scan(step, (x, start), layers)
    kept = jax.tree.map(lambda of_blocks: of_blocks.reshape(-1, *of_blocks.shape[2:]), kept)
    x = model.norm(x)
    end = End(x, reads(model, x))
    results = zip(reducers, carried, kept, strict=True)
    return Observed(
        model.classify(model.pool(x)), tuple(r.finish(view, c, k, end) for r, c, k in results)
    )


def reads(model: Any, x: jax.Array) -> jax.Array:
    """Tokens after the last norm [B, N, D] -> [B, N] float32: how the head's input mixes them.

    The class token alone, or half of it and half of the distillation token; the mean over patches;
    half class token, half patches for `cls_avg`; what the probe of attention pooling takes, mean
    over its heads. Rows sum to 1.
    """
    layout, pool = model.spec.token_layout(model.preprocess.image_size), model.spec.pool
    batch, n = x.shape[:2]
    if pool == "map":
        weights = model.pooling.weights(model.pooling.project(x))[:, :, 0].mean(axis=1)
        return jnp.pad(weights, ((0, 0), (model.pooling.first, 0)))
    patch_row = layout.pad_patches(np.full(layout.num_patches, 1 / layout.num_patches, np.float32))
    class_row = np.eye(n, dtype=np.float32)[: 1 + model.spec.distillation_token].mean(axis=0)
    row = {"cls": class_row, "avg": patch_row, "cls_avg": (class_row + patch_row) / 2}[pool]
    return jnp.broadcast_to(jnp.asarray(row), (batch, n))


@dataclasses.dataclass(frozen=True)
class Rollout(Reducer):
    """TokenParts of [B, N]: how much the head's input has taken from each token.

    Attention rollout (probes/attention.py) of what the head sees: of the class token's row, or the
    mean of its and the distillation token's; without one, the mean over the patches' rows, and with
    attention pooling their mean weighted by the probe's attention; for `cls_avg` half class token,
    half patches. The parts of one image sum to 1 together.
    """

    def start(self, view: View, batch: int) -> jax.Array:
        """The identity, [B, N, N]."""
        n = view.tokens.num_tokens
        return jnp.broadcast_to(jnp.eye(n, dtype=jnp.float32), (batch, n, n))

    def step(self, view: View, carried: jax.Array, layer: Layer) -> tuple[jax.Array, None]:
        """Multiplies by one layer."""
        return rules.rollout([carried, rules.with_residual(layer.weights)]), None

    def finish(self, view: View, carried: jax.Array, kept: Any, end: End) -> TokenParts:
        return view.tokens.split(jnp.einsum("bq,bqk->bk", end.reads, carried))


@dataclasses.dataclass(frozen=True)
class Distances(Reducer):
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
class FromQuery(Reducer):
    """TokenParts of [B, L, H, N]: where one token looks, in every layer and head."""

    query: Any = "class"  # (row, column) of a patch, from 0; or "class"

    def __post_init__(self) -> None:
        if isinstance(self.query, list):  # compiled functions are kept by it
            object.__setattr__(self, "query", tuple(self.query))

    def check(self, view: View) -> None:
        self._index(view)

    def step(self, view: View, carried: Any, layer: Layer) -> tuple[Any, jax.Array]:
        """[B, H, N]"""
        return carried, layer.weights[:, :, self._index(view)]

    def finish(self, view: View, carried: Any, kept: Any, end: End) -> TokenParts:
        return view.tokens.split(super().finish(view, carried, kept, end))

    def _index(self, view: View) -> int:
        layout = view.tokens
        if self.query == "class":
            if not layout.class_token:
                raise UserError("The model has no class token: give a patch as (row, column).")
            return 0
        try:
            row, column = self.query
        except (TypeError, ValueError):
            row, column = None, None
        if row in range(layout.grid[0]) and column in range(layout.grid[1]):
            first = layout.num_tokens - layout.num_patches
            return first + row * layout.grid[1] + column
        raise UserError(
            f"No token {self.query!r} to look from: give (row, column) in a grid of {layout.grid}, "
            'or "class".'
        )


@dataclasses.dataclass(frozen=True)
class Weights(Reducer):
    """[B, len(layers), H, N, N]: all weights of these layers, from 0; large."""

    layers: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(self.layers))

    def check(self, view: View) -> None:
        check_layers(self.layers, view.depth)

    def start(self, view: View, batch: int) -> jax.Array:
        n = view.tokens.num_tokens
        return jnp.zeros((batch, len(self.layers), view.num_heads, n, n), jnp.float32)

    def step(self, view: View, carried: jax.Array, layer: Layer) -> tuple[jax.Array, None]:
        """Fills in the places of this layer."""
        mine = jnp.asarray(self.layers) == layer.number
        return jnp.where(mine[:, None, None, None], layer.weights[:, None], carried), None

    def finish(self, view: View, carried: jax.Array, kept: Any, end: End) -> jax.Array:
        return carried


class Norms(NamedTuple):
    """Euclidean norms of tokens, to find outliers (probes/attention.py)."""

    # TokenParts of [B, L, N]: after each block, before any norm; where arXiv 2309.16588 looks is
    # the last of them.
    blocks: TokenParts
    output: TokenParts  # TokenParts of [B, N]: after the last norm


@dataclasses.dataclass(frozen=True)
class TokenNorms(Reducer):
    """Norms: how large each token is after each block, class token and registers apart."""

    def step(self, view: View, carried: Any, layer: Layer) -> tuple[Any, jax.Array]:
        """[B, N]"""
        return carried, _norms(layer.tokens)

    def finish(self, view: View, carried: Any, kept: jax.Array, end: End) -> Norms:
        of_blocks = view.tokens.split(super().finish(view, carried, kept, end))
        return Norms(of_blocks, view.tokens.split(_norms(end.tokens)))


def _norms(x: jax.Array) -> jax.Array:
    return jnp.linalg.norm(x.astype(jnp.float32), axis=-1)


def rollout(model: Any, images: Iterable[np.ndarray]) -> TokenParts:
    """Rollout alone; errors as of `look`."""
    return look(model, images, (Rollout(),)).results[0]


def attention_distance(model: Any, images: Iterable[np.ndarray]) -> np.ndarray:
    """Distances alone, [B, L, H] in pixels; errors as of `look`."""
    return look(model, images, (Distances(),)).results[0]
