"""Images in chunks of one size, so that memory does not depend on their number."""

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np
from flax import nnx

from vit_jax.core.errors import UserError

MEMORY_BYTES = 2**30  # for what a chunk takes besides the model


def chunk_size(model: Any, memory_bytes: int = MEMORY_BYTES) -> int:
    """Number of images in a chunk: as many as fit in memory, at least one."""
    return max(1, memory_bytes // bytes_per_image(model))


def bytes_per_image(model: Any) -> int:
    """An upper bound of the memory that looking at one image takes, gradients included.

    Counted in float32: the image, each layer's tokens, which gradients start from, and of one
    block its tokens and either several matrices of weights or the hidden layer of its MLP; before
    the blocks the largest unit of a ResNet, with what attention in its place has.
    """
    spec, size = model.spec, model.preprocess.image_size
    elements = 4 * spec.channels * math.prod(size)
    if hasattr(spec, "each_unit"):  # a ResNet
        unit_elements = (
            (unit.inputs + 2 * unit.hidden + unit.outputs) * math.prod(unit.size_in)
            + 2 * spec.middle_elements(unit)
            for unit in spec.each_unit(size)
        )
        elements += 2 * max(unit_elements, default=0)
    if hasattr(spec, "mlp_dim"):  # blocks
        n = spec.token_layout(size).num_tokens
        weights, hidden = n * n * (5 * spec.num_heads + 3), 4 * n * spec.mlp_dim
        elements += n * (spec.depth + 8) * spec.width + max(weights, hidden)
    return 4 * elements


def compute(f: Callable[[Any, jax.Array], Any], model: Any, images: Iterable[np.ndarray]) -> Any:
    """f(model, images) of all images, a tree of arrays with an axis of images first, in chunks.

    Compiled once. UserError as `in_chunks`.
    """
    graph, state = nnx.split(model)
    run = jax.jit(lambda state, x: f(nnx.merge(graph, state), x))
    return in_chunks(lambda x, _: run(state, x), model, images, chunk_size(model))


def in_chunks(
    look: Callable[[np.ndarray, int], Any], model: Any, images: Iterable[np.ndarray], chunk: int
) -> Any:
    """`look` at chunks of images [chunk, H, W, 3], the last one padded; its results put together.

    `look` also gets the number of images that are no padding, and returns a tree of arrays with an
    axis of images first. UserError for no image, and for one that does not have the model's size.
    """
    results: list[Any] = []
    checked = _checked(images, (*model.preprocess.image_size, model.spec.channels))
    while several := list(itertools.islice(checked, chunk)):
        part = np.stack(several)
        size = chunk if results else len(part)  # a first chunk that is not full is the only one
        padding = ((0, size - len(part)), *((0, 0),) * 3)
        result = jax.device_get(look(np.pad(part, padding), len(part)))
        results.append(jax.tree.map(operator.itemgetter(slice(len(part))), result))
    if not results:
        raise UserError("There is no image to look at.")
    return jax.tree.map(lambda *parts: np.concatenate(parts), *results)


def _checked(images: Iterable[np.ndarray], shape: tuple[int, ...]) -> Iterator[np.ndarray]:
    for image in images:
        one = np.asarray(image, np.float32)
        if one.shape != shape:
            raise UserError(f"An image of the shape {one.shape}: the model takes {shape}.")
        yield one
