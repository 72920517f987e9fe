"""Mixup (arXiv 1710.09412): trains on blends of two examples and of their targets."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def mixup(
    images: jax.Array, targets: jax.Array, weight: jax.Array, *, alpha: float, key: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Blends each example with the next one in global order; the last with the first.

    One ratio ~ Beta(alpha, alpha) per batch, as in the published recipes, taken as the larger of it
    and its complement: a slot stays mostly its own example, and accuracy against that one's label
    keeps a meaning. The partner is a roll, never a permutation: a roll moves one image
    between neighbouring devices, a permutation would gather all images on every device.

    Args:
      images: float [B, H, W, C].
      targets: float [B, C].
      weight: float [B]. A pair with an example of weight 0 gets weight 0.
      alpha: 0 returns the arguments, nothing is traced.
      key: of this step's ratio.

    Returns:
      images, targets, weight; shapes and dtypes as they came.
    """
    if not alpha:
        return images, targets, weight
    ratio = jax.random.beta(key, alpha, alpha)
    ratio = jnp.maximum(ratio, 1.0 - ratio)

    def blend(x: jax.Array) -> jax.Array:
        r = ratio.astype(x.dtype)
        return r * x + (1 - r) * jnp.roll(x, -1, axis=0)

    return blend(images), blend(targets), weight * jnp.roll(weight, -1)
