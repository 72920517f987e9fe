"""Masking of patches: which are masked, their pixels as targets, and the models that can."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from vit_jax import models
from vit_jax.core.errors import UserError
from vit_jax.models.layers.tokens import whole_patches

VIT = "A ViT"
COLOURS = 512  # 3 bits for each channel
_LONGEST_SIDES = 10 / 3  # of a block, by the other sides


class Masks(NamedTuple):
    """The patches of views that may be masked, and those that are."""

    places: jax.Array  # int32 [B, M], of patches
    counts: jax.Array  # float32 [B, M]: 1, or 0 for one that is not masked


def check_kind(method: str, name: str, *kinds: str) -> None:
    """UserError for a model of another kind."""
    if models.kind(name) not in kinds:
        known = " or ".join(kind.replace("A ", "a ") for kind in kinds)
        raise UserError(f"method.kind={method} learns with {known}, not model.name={name}.")


def check_pooling(method: str, spec: Any) -> None:
    """UserError for weights behind the tokens, which a loss on these leaves as they are."""
    for field, value, instead in (("pool", "map", "avg"), ("pre_logits", True, False)):
        if getattr(spec, field) == value:
            raise UserError(
                f"method.kind={method} trains no {field}={value}: set model.{field}={instead}."
            )


def num_masked(fraction: float, num_patches: int, field: str) -> int:
    """Number of patches that are masked. UserError unless some are, and some are not."""
    masked = round(fraction * num_patches)
    if not 0 < masked < num_patches:
        raise UserError(
            f"{field}={fraction:g} masks {masked} of {num_patches} patches, not 1 to "
            f"{num_patches - 1}."
        )
    return masked


def random_order(key: jax.Array, batch_size: int, num_patches: int) -> jax.Array:
    """int32 [B, N]: a random order of each image's patches; the last ones are to be masked."""
    return jnp.argsort(jax.random.uniform(key, (batch_size, num_patches)), axis=1)


def inverse(order: jax.Array) -> jax.Array:
    """[B, N] -> [B, N]: where each patch is in the order; the inverse permutation."""
    return jnp.argsort(order, axis=1)


def block_order(key: jax.Array, batch_size: int, grid: tuple[int, int]) -> jax.Array:
    """int32 [B, N]: as `random_order`, but the last so many are a block of each image, at random.

    A block of random place and shape, with sides in a ratio of up to 10 to 3 as in arXiv
    2106.08254, that reaches beyond no border: those of its patches are elsewhere around it.
    """
    row_key, column_key, shape_key = jax.random.split(key, 3)
    centre_y, centre_x = (
        jax.random.uniform(key, (batch_size, 1), maxval=n)
        for key, n in zip((row_key, column_key), grid, strict=True)
    )
    y, x = (jnp.asarray(each, jnp.float32) + 0.5 for each in jnp.indices(grid).reshape(2, 1, -1))
    limit = jnp.log(_LONGEST_SIDES) / 2
    shape = jnp.exp(jax.random.uniform(shape_key, (batch_size, 1), minval=-limit, maxval=limit))
    rows = jnp.abs(y - centre_y) * shape
    columns = jnp.abs(x - centre_x) / shape
    return jnp.argsort(-jnp.maximum(rows, columns), axis=1)


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


def cut_again(patches: jax.Array, side: int) -> jax.Array:
    """[..., P, P, 3] -> [..., side * side, P / side, P / side, 3]: each patch cut again."""
    *first, p, _, c = patches.shape
    n = p // side
    x = patches.reshape(*first, side, n, side, n, c)
    x = jnp.swapaxes(x, -4, -3)
    return x.reshape(*first, side * side, n, n, c)
