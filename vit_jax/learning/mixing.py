"""Mixup (arXiv 1710.09412) and CutMix (arXiv 1905.04899): blending of pairs of examples.

An example's partner is the next one in global order, the last one's is the first: a roll, not a
permutation; or, with `mix_mode=pair`, the other one of two neighbours. Both move one image between
neighbouring devices at most, a permutation would gather all images on every device.
"""

from typing import Any

import jax
import jax.numpy as jnp

# Mode -> examples of a batch of B that share their draws. Of a pair, either is the other's partner.
MODES = {"batch": lambda size: size, "pair": lambda size: 2, "element": lambda size: 1}


def mix(
    images: jax.Array,
    targets: jax.Array,
    weight: jax.Array,
    mixing: Any,
    *,
    key: jax.Array,
    progress: jax.Array | float = 0.0,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Blends each example and its targets with another one.

    lam is an example's own weight in a pixel. In mixup it is ~ Beta(alpha, alpha), or its
    complement if larger: a slot stays mostly its own example. In CutMix it is 1 outside a box of
    area 1 - Beta(alpha, alpha), and 0 inside. Targets are blended by the mean of lam.

    Args:
      images: float [B, H, W, 3].
      targets: float [B, C], any weights of classes.
      weight: float [B]. A pair with an example of weight 0 gets weight 0.
      mixing: a LossConfig; if both of its alphas are 0 the arguments are returned unchanged.
      progress: [] in [0, 1], how much of the training is done.
    """
    if not mixing.mixup and not mixing.cutmix:
        return images, targets, weight
    sharing = MODES[mixing.mix_mode](len(images))
    keys = jax.random.split(key, len(images) // sharing) if sharing < len(images) else key[None]
    lam = jax.vmap(lambda k: _lam(mixing, k, progress, images.shape[1:3]))(keys)
    if 1 < sharing < len(images):
        lam = jnp.repeat(lam, sharing, axis=0)

    def partner(x: jax.Array) -> jax.Array:
        if mixing.mix_mode == "pair":
            return jnp.flip(x.reshape(-1, 2, *x.shape[1:]), 1).reshape(x.shape)
        return jnp.roll(x, -1, axis=0)

    def blend(x: jax.Array, lam: jax.Array) -> jax.Array:
        lam = lam.astype(x.dtype)
        return lam * x + (1 - lam) * partner(x)

    shares = lam.mean((1, 2))[:, None]
    images = blend(images, lam[..., None])
    weight = jnp.where(shares[:, 0] < 1, weight * partner(weight), weight)
    return images, blend(targets, shares), weight


def _lam(
    mixing: Any, key: jax.Array, progress: jax.Array | float, pixels: tuple[int, ...]
) -> jax.Array:
    """Own weight [H, W] of the examples that share these draws; 1: they are not mixed."""
    ratio_key, box_key, choice_key = jax.random.split(key, 3)
    if not mixing.cutmix:
        lam = _mixup_lam(ratio_key, mixing.mixup, pixels)
    elif not mixing.mixup:
        lam = _cutmix_lam(box_key, mixing.cutmix, pixels)
    else:
        lam = jnp.where(
            jax.random.bernoulli(choice_key, mixing.cutmix_share),
            _cutmix_lam(box_key, mixing.cutmix, pixels),
            _mixup_lam(ratio_key, mixing.mixup, pixels),
        )
    if mixing.mix_probability == 1 and mixing.mix_until == 1:
        return lam
    is_mixed = jax.random.bernoulli(jax.random.fold_in(choice_key, 1), mixing.mix_probability)
    return jnp.where(is_mixed & (progress < mixing.mix_until), lam, 1.0)


def _mixup_lam(key: jax.Array, alpha: float, pixels: tuple[int, ...]) -> jax.Array:
    """Own weight [H, W], the same everywhere, at least a half."""
    ratio = jax.random.beta(key, alpha, alpha)
    return jnp.full(pixels, jnp.maximum(ratio, 1 - ratio))


def _cutmix_lam(key: jax.Array, alpha: float, pixels: tuple[int, ...]) -> jax.Array:
    """Own weight [H, W]: 1, with a box of 0 centred anywhere and cut off at the border."""
    ratio_key, *centre_keys = jax.random.split(key, 3)
    side = jnp.sqrt(1 - jax.random.beta(ratio_key, alpha, alpha))  # the box's side over the image's

    def covered(key: jax.Array, length: int) -> jax.Array:
        centre = jax.random.randint(key, (), 0, length)
        half = jnp.floor(side * length).astype(jnp.int32) // 2
        places = jnp.arange(length)
        return (places >= centre - half) & (places < centre + half)

    rows, columns = (covered(k, n) for k, n in zip(centre_keys, pixels, strict=True))
    return 1.0 - (rows[:, None] & columns[None, :]).astype(jnp.float32)
