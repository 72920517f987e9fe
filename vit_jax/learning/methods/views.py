"""Several views of an image in one batch, for methods that compare them (input.views)."""

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from vit_jax import models
from vit_jax.core.errors import UserError
from vit_jax.learning.method import Sizes
from vit_jax.learning.methods.masking import VIT, Masks

BIT = "A BiT ResNet"


def check_patch_weight(patch_weight: float, name: str) -> None:
    """UserError for a loss of patches, and a model without them."""
    if patch_weight and models.kind(name) != VIT:
        raise UserError(f"method.patch_weight={patch_weight:g} needs a ViT, not {name}.")


def check_positions(name: str, spec: Any, sizes: Sizes) -> None:
    """UserError for views of sizes that a ViT cannot take."""
    if models.kind(name) != VIT:
        return
    for size in sizes.views:
        if any(side % spec.stride for side in size):
            raise UserError(f"input.views has {size}, which patches of {spec.stride} do not tile.")
    if spec.position_place == "layers" and set(sizes.views) != {sizes.image}:
        raise UserError(
            f"model.position_embedding={spec.position_embedding} at {spec.position_place} cannot "
            "be interpolated for small views."
        )


def interleave(views: Sequence[jax.Array]) -> jax.Array:
    """Views of one size, [B, H, W, 3] each -> [B V, H, W, 3], image by image.

    So no device sends an image to another.
    """
    stacked = jnp.stack(views, axis=1)
    return stacked.reshape(-1, *stacked.shape[2:])


def encode(
    model: Any, images: jax.Array, key: Any, masked: Masks | None = None
) -> tuple[jax.Array, jax.Array | None]:
    """Images, of any size -> features [B, D] float32, and a ViT's tokens [B, N, D].

    key: for dropout and stochastic depth; None: in evaluation mode. masked: the patches that
    `model.method.mask` stands in for.
    """
    if not hasattr(model, "encode"):
        return model(images, train=key is not None, rngs=key), None
    layout = model.spec.token_layout(images.shape[1:3])
    x = model.patches(images)
    if masked is not None:
        rows = jnp.arange(len(x))[:, None]
        hidden = jnp.zeros(x.shape[:2]).at[rows, masked.places].set(masked.counts)
        x = jnp.where(hidden[..., None] > 0, model.method.mask[...].astype(x.dtype), x)
    model = model.resized(layout)
    tokens = model.encode(model.add_prefix_and_positions(x), key)
    return model.pool(tokens).astype(jnp.float32), tokens


def features(model: Any, views: Sequence[jax.Array], keys: Any) -> list[jax.Array]:
    """Views [B, H, W, 3] -> features float32 [B, V, D] of those of each size, the smallest first.

    Views of one size are one batch, in training mode with one of the keys.
    """
    groups = itertools.groupby(sorted(views, key=lambda x: x.shape), key=lambda x: x.shape)
    encoded = (
        encode(model, interleave(list(group)), key)[0]
        for (_, group), key in zip(groups, keys, strict=False)
    )
    return [x.reshape(len(views[0]), -1, x.shape[-1]) for x in encoded]
