"""Relevance of an image's parts for a class, by gradients: of every family of models."""

import functools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vit_jax.core.errors import UserError
from vit_jax.core.token_layout import TokenLayout, TokenParts
from vit_jax.models.observe.attention import has_attention, reads
from vit_jax.models.observe.chunks import MEMORY_BYTES, chunk_size, in_chunks
from vit_jax.probes import attention as rules

_LARGEST = -1  # in place of a class: the one with the largest logit


class Relevance(NamedTuple):
    """What was relevant for a class.

    Attributes:
      map: TokenParts of [B, N], not negative, of no unit, and 0 everywhere where nothing speaks for
        the class; a ConvNet's are patches alone, the positions of its last feature map.
      classes: [B] int32, for which.
      logits: [B, C] float32.
    """

    map: TokenParts
    classes: Any
    logits: Any


def relevance(
    model: Any,
    images: Iterable[np.ndarray],
    classes: int | Sequence[int] | np.ndarray | None = None,
    *,
    memory_bytes: int = MEMORY_BYTES,
) -> Relevance:
    """How relevant each patch is for the logit of a class.

    ViTs and hybrids: arXiv 2103.15679, section 3.1, from the token that the head sees: the class
    token; of two heads, the mean of theirs; without one, the mean of all patches; for `cls_avg`
    half and half; with attention pooling, the tokens by the relevance of the probe's weights, the
    rule for one more layer. BiTs and EfficientNets: Grad-CAM (arXiv 1610.02391) of the last feature
    map, after its activation.

    Args:
      model: it is not changed.
      images: [B, H, W, 3] float32, normalised, or one [H, W, 3] after the other.
      classes: one for all images, or one for each; None: each image's largest logit.
      memory_bytes: sets the number of images in a chunk; the model comes on top.

    Raises:
      UserError: a model without a head; classes that it does not have, or not one for each image;
        images of another size, or none.
    """
    if not model.num_classes:
        raise UserError(
            "The model has no head (num_classes=0), so nothing is relevant for a class: take "
            "weights with a head, or rollout, which needs none."
        )
    chunk = chunk_size(model, memory_bytes)
    graph, state = nnx.split(model)
    program = of_attention if has_attention(model) else of_feature_map
    wanted = _each(classes, model.num_classes)

    def look(part: np.ndarray, number: int) -> Relevance:
        chosen = [next(wanted, None) for _ in range(number)]
        if None in chosen:
            raise UserError(
                "There are fewer classes than images: give one class, or one for each image."
            )
        padded = np.pad(np.array(chosen, np.int32), (0, len(part) - number))
        return program(graph, state, part, padded)

    found = in_chunks(look, model, images, chunk)
    if not (classes is None or np.ndim(classes) == 0) and next(wanted, None) is not None:
        raise UserError(
            f"There are more classes than images, {np.size(classes)} for {len(found.classes)}: "
            "give one class, or one for each image."
        )
    return found


def _each(classes: Any, num_classes: int) -> Any:
    """The class of each image, one after the other. UserError for one that does not exist."""
    if classes is None:
        return _forever(_LARGEST)
    given = np.asarray(classes)
    wrong = given[(given < 0) | (given >= num_classes)] if given.dtype.kind in "iu" else given
    if given.ndim > 1 or wrong.size:
        raise UserError(
            f"class {wrong.flat[0] if wrong.size else classes}: the model has classes 0 to "
            f"{num_classes - 1}; give one, or one for each image."
        )
    return iter(given.tolist()) if given.ndim else _forever(int(given))


def _forever(value: int) -> Any:
    while True:
        yield value


@functools.partial(jax.jit, static_argnums=0)
def of_attention(graph: Any, state: Any, images: jax.Array, classes: jax.Array) -> Relevance:
    """`relevance` of one chunk by equations 5 and 6; graph, state: as nnx.split gives them."""
    model = nnx.merge(graph, state)
    layout: TokenLayout = model.spec.token_layout(model.preprocess.image_size)
    block_graph, params = nnx.split(model.blocks.block)
    shared = model.shared_positions

    def forward(x: jax.Array, own: Any) -> tuple[jax.Array, list[jax.Array]]:
        inputs = []
        for block in nnx.merge(block_graph, own).attention_blocks:
            inputs.append(x)
            x = block(x, positions=shared)
        return x, inputs

    last, inputs = jax.lax.scan(forward, model.embed(images), params)
    logits, classes, d_last, row = _at_the_head(model, last, classes)

    def backward(carry: Any, each: Any) -> tuple[Any, None]:
        (d, row), (inputs, own) = carry, each
        blocks = nnx.merge(block_graph, own).attention_blocks
        for block, x in zip(reversed(blocks), reversed(inputs), strict=True):
            weights = block.attention_weights(x, shared)
            by_weights = functools.partial(_by_weights, block, shared)
            _, back = jax.vjp(by_weights, x, jnp.zeros_like(weights))
            d, d_weights = back(d)
            row = rules.accumulated(row, rules.positive(weights, d_weights))
        return (d, row), None

    (_, row), _ = jax.lax.scan(backward, (d_last, row), (inputs, params), reverse=True)
    return Relevance(layout.split(row), classes, logits)


def _by_weights(block: Any, shared: Any, x: jax.Array, offset: jax.Array) -> jax.Array:
    return block(x, positions=shared, offset=offset)


def _at_the_head(
    model: Any, last: jax.Array, classes: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Tokens after the last block -> logits, classes, gradient by the tokens, relevance [B, N]."""
    if model.spec.pool != "map":
        logits, back = jax.vjp(lambda x: model.classify(model.pool(model.norm(x))), last)
        classes = _chosen(logits, classes)
        (d_last,) = back(_of_class(logits, classes))
        return logits, classes, d_last, reads(model, last)
    registers = model.spec.registers
    weights = model.pooling.weights(model.norm(last))
    by_weights = lambda x, offset: model.classify(model.pool(model.norm(x), offset))
    logits, back = jax.vjp(by_weights, last, jnp.zeros_like(weights))
    classes = _chosen(logits, classes)
    d_last, d_weights = back(_of_class(logits, classes))
    row = rules.positive(weights, d_weights)[:, 0]
    return logits, classes, d_last, jnp.pad(row, ((0, 0), (registers, 0)))


@functools.partial(jax.jit, static_argnums=0)
def of_feature_map(graph: Any, state: Any, images: jax.Array, classes: jax.Array) -> Relevance:
    """`relevance` of one chunk by Grad-CAM; graph, state: as nnx.split gives them."""
    model = nnx.merge(graph, state)
    features = model.feature_map(images)
    logits, back = jax.vjp(lambda x: model.classify(model.pool(x)), features)
    classes = _chosen(logits, classes)
    (gradients,) = back(_of_class(logits, classes))
    found = rules.grad_cam(features.astype(jnp.float32), gradients.astype(jnp.float32))
    none = jnp.zeros((images.shape[0], 0), jnp.float32)
    return Relevance(TokenParts(none, none, found), classes, logits)


def _chosen(logits: jax.Array, classes: jax.Array) -> jax.Array:
    return jnp.where(classes == _LARGEST, jnp.argmax(logits, axis=-1), classes)


def _of_class(logits: jax.Array, classes: jax.Array) -> jax.Array:
    """The gradient of one class's logit by all logits, [B, C]."""
    return jax.nn.one_hot(classes, logits.shape[-1], dtype=logits.dtype)
