"""Relevance of an image's parts for a class, by gradients: of every family of models."""

import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vit_jax.core.errors import UserError
from vit_jax.core.token_layout import TokenLayout, TokenParts
from vit_jax.models.layers.kernels.xla import Projected
from vit_jax.models.observe.attention import has_attention, reads
from vit_jax.models.observe.chunks import MEMORY_BYTES, chunk_size, in_chunks
from vit_jax.probes import attention as rules

_LARGEST = -1  # in place of a class: the one with the largest logit


class Relevance(NamedTuple):
    """The relevance of patches for a class."""

    # TokenParts of [B, N], not negative, of no unit, and 0 everywhere where nothing speaks for the
    # class; a ConvNet's are patches alone, the positions of its last feature map.
    map: TokenParts
    classes: Any  # [B] int32, for which
    logits: Any  # [B, C] float32


def relevance(
    model: Any,
    images: Iterable[np.ndarray],
    classes: int | Sequence[int] | np.ndarray | None = None,
    *,
    memory_bytes: int = MEMORY_BYTES,
) -> Relevance:
    """Computes how relevant each patch is for the logit of a class.

    ViTs and hybrids: arXiv 2103.15679, section 3.1, from the token that the head sees: the class
    token; of two heads, the mean of theirs; without one, the mean of all patches; for `cls_avg`
    half and half; with attention pooling, the tokens by the relevance of the probe's weights, the
    rule for one more layer. ConvNets: Grad-CAM (arXiv 1610.02391) of the last feature
    map, after its activation.

    Args:
      images: [B, H, W, 3] float32, normalised, or one [H, W, 3] after the other.
      classes: one for all images, or one for each; None: each image's largest logit.
      memory_bytes: sets the number of images in a chunk; the model comes on top.
    """
    if not model.num_classes:
        raise UserError("The model has no head, so nothing is relevant for a class: take rollout.")
    chunk = chunk_size(model, memory_bytes)
    graph, state = nnx.split(model)
    program = of_attention if has_attention(model) else of_feature_map
    wanted = _each(classes, model.num_classes)

    def look(part: np.ndarray, number: int) -> Relevance:
        chosen = np.array(list(itertools.islice(wanted, number)), np.int32)
        _check_number(len(chosen) == number)
        return program(graph, state, part, np.pad(chosen, (0, len(part) - number)))

    result = in_chunks(look, model, images, chunk)
    _check_number(isinstance(wanted, itertools.repeat) or next(wanted, None) is None)
    return result


def _check_number(fits: bool) -> None:
    if not fits:
        raise UserError("Give one class for all images, or as many classes as images.")


def _each(classes: Any, num_classes: int) -> Any:
    """The class of each image, one after the other. UserError for one that does not exist."""
    if classes is None:
        return itertools.repeat(_LARGEST)
    given = np.asarray(classes)
    wrong = given[(given < 0) | (given >= num_classes)] if given.dtype.kind in "iu" else given
    if given.ndim > 1 or wrong.size:
        raise UserError(
            f"class {wrong.flat[0] if wrong.size else classes}: give one below {num_classes}, or "
            "one for each image."
        )
    return iter(given.tolist()) if given.ndim else itertools.repeat(int(given))


@functools.partial(jax.jit, static_argnums=0)
def of_attention(graph: Any, state: Any, images: jax.Array, classes: jax.Array) -> Relevance:
    """`relevance` of one chunk by equations 5 and 6; graph, state: as nnx.split gives them."""
    model = nnx.merge(graph, state)
    layout: TokenLayout = model.spec.token_layout(model.preprocess.image_size)
    block_graph, params = nnx.split(model.blocks.block)

    def blocks_of(params: Any) -> Any:
        return complete(nnx.merge(block_graph, params)).attention_blocks

    def forward(x: jax.Array, own: Any) -> tuple[jax.Array, list[jax.Array]]:
        inputs = []
        for block in blocks_of(own):
            inputs.append(x)
            x = block(x)
        return x, inputs

    x = model.embed(images)
    complete = model.completing(x)
    last, inputs = jax.lax.scan(forward, x, params)
    logits, classes, d_last, row = _at_the_head(model, last, classes)

    def backward(carry: Any, each: Any) -> tuple[Any, None]:
        (d, row), (inputs, own) = carry, each
        for block, x in zip(reversed(blocks_of(own)), reversed(inputs), strict=True):
            weights = block.attention_weights(x)
            _, back = jax.vjp(functools.partial(_by_weights, block), x, jnp.zeros_like(weights))
            d, d_weights = back(d)
            row = rules.accumulated(row, rules.positive(weights, d_weights))
        return (d, row), None

    (_, row), _ = jax.lax.scan(backward, (d_last, row), (inputs, params), reverse=True)
    return Relevance(layout.split(row), classes, logits)


def _by_weights(block: Any, x: jax.Array, offset: jax.Array) -> jax.Array:
    probed = nnx.merge(*nnx.split(block))
    _add_to_weights(probed.attention, offset)
    return probed(x)


def _add_to_weights(attention: Any, offset: jax.Array) -> None:
    """Adds to the normalised weights of an attention, or of attention pooling: [B, H, N, N].

    The gradient by zeros there is the gradient by the weights, whatever program computes them.
    """
    mix = attention.mix

    def mix_more(projected: Projected, *key: Any) -> jax.Array:
        value = projected.value
        more = jnp.einsum("bhqs,bshk->bqhk", offset.astype(value.dtype), value)
        return mix(projected, *key) + more

    attention.mix = mix_more


def _at_the_head(
    model: Any, last: jax.Array, classes: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Tokens after the last block -> logits, classes, gradient by the tokens, relevance [B, N]."""
    if model.spec.pool != "map":
        logits, back = jax.vjp(lambda x: model.classify(model.pool(model.norm(x))), last)
        classes = _chosen(logits, classes)
        (d_last,) = back(_of_class(logits, classes))
        return logits, classes, d_last, reads(model, last)
    ignored = model.pooling.first
    weights = model.pooling.weights(model.pooling.project(model.norm(last)))

    def by_weights(x: jax.Array, offset: jax.Array) -> jax.Array:
        probed = nnx.merge(*nnx.split(model))
        _add_to_weights(probed.pooling, offset)
        return probed.classify(probed.pool(probed.norm(x)))

    logits, back = jax.vjp(by_weights, last, jnp.zeros_like(weights))
    classes = _chosen(logits, classes)
    d_last, d_weights = back(_of_class(logits, classes))
    row = rules.positive(weights, d_weights)[:, 0]
    return logits, classes, d_last, jnp.pad(row, ((0, 0), (ignored, 0)))


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
