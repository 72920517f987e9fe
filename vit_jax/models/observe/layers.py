"""A pass through a ViT that shows each layer's attention to reducers, and keeps none of it."""

import functools
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vit_jax.core.errors import UserError
from vit_jax.core.token_layout import TokenLayout
from vit_jax.models.observe.chunks import MEMORY_BYTES, chunk_size, in_chunks


class View(NamedTuple):
    """The sizes of a model's attention.

    Attributes:
      tokens: their layout.
      pixels_per_patch: (height, width) in the image; hybrids too.
      depth: L, the number of layers: of attentions, two in each block of an Axial-ViT.
      num_heads: H.
    """

    tokens: TokenLayout
    pixels_per_patch: tuple[float, float]
    depth: int
    num_heads: int


class Layer(NamedTuple):
    """One block.

    Attributes:
      number: which, from 0: an int32 scalar of JAX.
      weights: [B, H, N, N] float32; row q is how much token q takes from each token.
      tokens: [B, N, D] that leave it.
    """

    number: jax.Array
    weights: jax.Array
    tokens: jax.Array


class End(NamedTuple):
    """What follows the last block.

    Attributes:
      tokens: [B, N, D] after the last norm.
      reads: [B, N] float32, how much the head's input takes from each of these; rows sum to 1.
    """

    tokens: jax.Array
    reads: jax.Array


class Reducer(Protocol):
    """What is kept of the layers, so that their weights need not be. Hashable; traced by JAX."""

    def check(self, view: View) -> None:
        """Raises UserError for a model that does not have what is asked for."""

    def start(self, view: View, batch: int) -> Any:
        """What is carried from layer to layer, before the first one: a tree of arrays."""

    def step(self, view: View, carried: Any, layer: Layer) -> tuple[Any, Any]:
        """(what is carried on, what is kept of this layer)."""

    def finish(self, view: View, carried: Any, kept: Any, end: End) -> Any:
        """The result, arrays [B, ...]; kept: as from `step`, with an axis L before all others."""


class Observed(NamedTuple):
    """What a pass gave.

    Attributes:
      logits: [B, C] float32, as of model(images); headless: features [B, D].
      results: of the reducers, in their order.
    """

    logits: np.ndarray
    results: tuple[Any, ...]


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
      model: it is not changed.
      images: [B, H, W, 3] float32, normalised, or one [H, W, 3] after the other.
      reducers: what to keep.
      memory_bytes: sets the number of images in a chunk; the model comes on top.

    Raises:
      UserError: a model without attention; images of another size, or none.
    """
    view = view_of(model)
    for reducer in reducers:
        reducer.check(view)
    graph, state = nnx.split(model)
    one_chunk = lambda part, _: one_pass(graph, tuple(reducers), view, state, part)
    return in_chunks(one_chunk, model, images, chunk_size(model, memory_bytes))


def view_of(model: Any) -> View:
    """The sizes of a model's attention. UserError for a model without any."""
    if not has_attention(model):
        raise UserError(
            f"This {type(model).__name__} has no blocks of attention, so there is no attention to "
            "show, no distance and no rollout: take a ViT or a hybrid. Relevance by gradients, "
            "filters and features are for this model too."
        )
    spec, size = model.spec, model.preprocess.image_size
    layout = spec.token_layout(size)
    pixels = (size[0] / layout.grid[0], size[1] / layout.grid[1])
    return View(layout, pixels, spec.depth * len(model.blocks.block.each), spec.num_heads)


def has_attention(model: Any) -> bool:
    """Whether the model has blocks of attention over tokens: ResNets and EfficientNets do not."""
    return hasattr(model, "blocks")


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def one_pass(
    graph: Any, reducers: tuple[Reducer, ...], view: View, state: Any, images: jax.Array
) -> Observed:
    """`look` at one chunk; graph, state: the model, as nnx.split gives it."""
    model = nnx.merge(graph, state)
    shared = model.shared_positions
    block_graph, params = nnx.split(model.blocks.block)

    def step(carry: Any, each: Any) -> tuple[Any, Any]:
        (x, carried), all_kept = carry, []
        number, own = each
        blocks = nnx.merge(block_graph, own).each
        for i, block in enumerate(blocks):
            # Beside the block's own computation, whose numbers so stay what they are. XLA merges
            # what is the same in both.
            weights = block.attention_weights(x, shared)
            x = block(x, positions=shared)
            layer = Layer(number * len(blocks) + i, weights, x)
            stepped = [r.step(view, c, layer) for r, c in zip(reducers, carried, strict=True)]
            carried = tuple(c for c, _ in stepped)
            all_kept.append(tuple(kept for _, kept in stepped))
        return (x, carried), jax.tree.map(lambda *of_each: jnp.stack(of_each), *all_kept)

    start = tuple(r.start(view, images.shape[0]) for r in reducers)
    layers = (jnp.arange(model.spec.depth), params)
    (x, carried), kept = jax.lax.scan(step, (model.embed(images), start), layers)
    kept = jax.tree.map(lambda of_blocks: of_blocks.reshape(-1, *of_blocks.shape[2:]), kept)
    x = model.norm(x)
    end = End(x, reads(model, x))
    results = zip(reducers, carried, kept, strict=True)
    return Observed(
        model.classify(model.pool(x)), tuple(r.finish(view, c, k, end) for r, c, k in results)
    )


def reads(model: Any, x: jax.Array) -> jax.Array:
    """Tokens after the last norm [B, N, D] -> [B, N] float32: how the head's input mixes them.

    The class token alone; the mean over patches; half of each for `cls_avg`; what the probe of
    attention pooling takes, mean over its heads. Rows sum to 1.
    """
    layout, pool = model.spec.token_layout(model.preprocess.image_size), model.spec.pool
    batch, n = x.shape[:2]
    if pool == "map":
        weights = model.pooling.weights(x[:, layout.registers :])[:, :, 0].mean(axis=1)
        return jnp.pad(weights, ((0, 0), (layout.registers, 0)))
    of_patches = layout.pad_patches(np.full(layout.num_patches, 1 / layout.num_patches, np.float32))
    of_class = np.eye(n, dtype=np.float32)[0]
    row = {"cls": of_class, "avg": of_patches, "cls_avg": (of_class + of_patches) / 2}[pool]
    return jnp.broadcast_to(jnp.asarray(row), (batch, n))
