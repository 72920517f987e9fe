"""Mixup (arXiv 1710.09412) and CutMix (arXiv 1905.04899): blending of pairs of examples.

An example's partner is the next one in global order, the last one's is the first: a roll, not a
permutation. A roll moves one image between neighbouring devices, a permutation would gather all
images on every device.
"""

import jax
import jax.numpy as jnp

CUTMIX_PROBABILITY = 0.5  # in a step that could do either, as in DeiT's code (arXiv 2012.12877)


def mix(
    images: jax.Array,
    targets: jax.Array,
    weight: jax.Array,
    *,
    mixup_alpha: float,
    cutmix_alpha: float,
    key: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Blends each example and its targets with the next one, alike in the whole batch.

    lam is an example's own weight in a pixel. In mixup it is ~ Beta(alpha, alpha), or its
    complement if larger: a slot stays mostly its own example. In CutMix it is 1 outside a box of
    area 1 - Beta(alpha, alpha), and 0 inside. Targets are blended by the mean of lam.

    Args:
      images: float [B, H, W, 3].
      targets: float [B, C], any weights of classes.
      weight: float [B]. A pair with an example of weight 0 gets weight 0.
      mixup_alpha, cutmix_alpha: 0: off. If both are off the arguments are returned unchanged and
        nothing is traced; if both are on each step draws one of them.
      key: this step's key.

    Returns:
      images, targets, weight; with unchanged shapes and dtypes.
    """
    if not mixup_alpha and not cutmix_alpha:
        return images, targets, weight
    ratio_key, box_key, choice_key = jax.random.split(key, 3)
    pixels = images.shape[1:3]
    if not cutmix_alpha:
        lam = _mixup_lam(ratio_key, mixup_alpha, pixels)
    elif not mixup_alpha:
        lam = _cutmix_lam(box_key, cutmix_alpha, pixels)
    else:
        lam = jnp.where(
            jax.random.bernoulli(choice_key, CUTMIX_PROBABILITY),
            _cutmix_lam(box_key, cutmix_alpha, pixels),
            _mixup_lam(ratio_key, mixup_alpha, pixels),
        )

    def blend(x: jax.Array, lam: jax.Array) -> jax.Array:
        lam = lam.astype(x.dtype)
        return lam * x + (1 - lam) * jnp.roll(x, -1, axis=0)

    images = blend(images, lam[:, :, None])
    return images, blend(targets, lam.mean()), weight * jnp.roll(weight, -1)


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
