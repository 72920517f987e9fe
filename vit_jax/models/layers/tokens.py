"""Images to tokens (Eq. 1), and tokens to the features that a head sees (Eq. 4)."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.core.axes import BATCH, HEAD_SIZE, HEADS, PATCH, QKV, STREAM, TOKENS, WIDTH, constrain
from vit_jax.models.layers.block import (
    BlockSpec,
    Mlp,
    identity,
    input_projections,
    output_projection,
)  # fmt: skip
from vit_jax.models.layers.kernels.xla import Projected, attend, normalised_weights
from vit_jax.models.layers.linear import affine, param


def whole_patches(images: jax.Array, patch_size: int) -> jax.Array:
    """[B, H, W, C] -> the same without the last rows and columns that fill no patch."""
    rows, columns = (side // patch_size * patch_size for side in images.shape[1:3])
    return images[:, :rows, :columns]


class PatchEmbedding(nnx.Module):
    """The projection of P x P patches; its kernel is [P, P, channels, D], as in a convolution.

    Args:
      spec: a ViTSpec. patch_size, channels: of images, or of the feature maps in their place.
    """

    def __init__(self, spec: Any, patch_size: int, channels: int, rngs: nnx.Rngs):
        self.norm = spec.make_norm(rngs) if spec.patch_norm else identity
        shape = (patch_size, patch_size, channels, spec.width)
        axes = (PATCH, PATCH, PATCH, WIDTH)
        self.kernel = param(spec.init.patch_kernel, shape, axes, rngs.params())
        init = functools.partial(spec.init.patch_bias, inputs=patch_size**2 * channels)
        self.bias = param(init, (spec.width,), (WIDTH,), rngs.params()) if spec.patch_bias else None
        self.patch_size, self.precision = patch_size, spec.precision

    def __call__(self, images: jax.Array) -> jax.Array:
        """[B, H, W, 3] -> [B, N, D]; patches row by row, without pixels that fill none."""
        # Cut and multiply instead of a strided convolution: the same sum, as one matrix product.
        p = self.patch_size
        images = whole_patches(images, p)
        b, h, w, c = images.shape
        x = images.astype(self.precision.compute).reshape(b, h // p, p, w // p, p, c)
        x = x.transpose(0, 1, 3, 2, 4, 5).reshape(b, (h // p) * (w // p), p * p * c)
        kernel = self.kernel[...].reshape(p * p * c, -1)
        bias = jax.tree.map(lambda b: b[...], self.bias)  # None stays None
        x = self.norm(affine(x, kernel, bias, 1, self.precision))
        return constrain(x, BATCH, TOKENS, STREAM)


class Pooling(nnx.Module):
    """The features of tokens, [B, N, D] -> [B, D] or [B, 2 D]."""

    def seen(self, x: jax.Array) -> jax.Array:
        """[B, N, D] -> the tokens that it reads, and those before them."""
        return x

    def call_last(self, block: Any, *inputs: Any) -> jax.Array:
        """The last block's result, block(*inputs), which may be without tokens that it ignores."""
        return block(*inputs)

    def of_image(self, features: jax.Array) -> jax.Array:
        """Its result -> features of the image, [B, D] or [B, 2 D]."""
        return features


class FirstTokens(Pooling):
    """The first tokens, side by side; the last block need not compute the others."""

    def __init__(self, number: int):
        self.number = number

    def seen(self, x: jax.Array) -> jax.Array:
        """[B, N, D] -> [B, number, D]."""
        return x[:, : self.number]

    def call_last(self, block: Any, *inputs: Any) -> jax.Array:
        """[B, N, D] -> [B, number, D]."""
        return block.first_tokens(self.number, *inputs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, N, D] -> [B, number * D]."""
        return self.seen(x).reshape(x.shape[0], -1)


class PatchMean(Pooling):
    """The mean over the patches, the tokens from `first` on; or both it and the class token."""

    def __init__(self, first: int, *, class_token: bool):
        self.first, self.class_token = first, class_token

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, N, D] -> [B, D], or [B, 2 D]."""
        mean = jnp.mean(x[:, self.first :], axis=1, dtype=jnp.float32).astype(x.dtype)
        return jnp.concatenate([x[:, 0], mean], axis=1) if self.class_token else mean


class Patches(Pooling):
    """The tokens of patches, from `first` on: what a dense head sees."""

    def __init__(self, first: int):
        self.first = first

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, N, D] -> [B, N - first, D]."""
        return x[:, self.first :]

    def of_image(self, features: jax.Array) -> jax.Array:
        """[B, N - first, D] -> [B, D]: their mean."""
        return jnp.mean(features, axis=1, dtype=jnp.float32)


class AttentionPooling(Pooling):
    """Attention from a learned probe to the tokens, plus a plain MLP of its normalised output.

    The multi-head attention pooling (MAP) of arXiv 1810.00825 (section 3.2) with one probe, as in
    Vision Transformers since arXiv 2106.04560 (section 3.2).
    """

    def __init__(self, spec: BlockSpec, *, first: int, rngs: nnx.Rngs):
        self.first = first
        self.probe = param(
            lambda key, shape, dtype: spec.init.kernel(key, (1, *shape), dtype)[0],  # as [1, D]
            (spec.width,),
            (WIDTH,),
            rngs.params(),
        )
        self.query = input_projections(1, spec, rngs=rngs)
        self.key_value = input_projections(2, spec, rngs=rngs)
        self.out = output_projection(spec, rngs=rngs)
        self.precision = spec.precision
        self.norm = spec.make_norm(rngs)
        plain = dataclasses.replace(spec, mlp="mlp", mlp_norm=False, dense_bias=True, dropout=0.0)
        self.mlp = Mlp(plain, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, N, D] -> [B, D]."""
        x = self.out(self.mix(self.project(x)))
        x = x + self.mlp(self.norm(x), None)
        return constrain(x[:, 0], BATCH, STREAM)

    def mix(self, projected: Projected) -> jax.Array:
        """-> [B, 1, H, K]: the values mixed by the weights."""
        return attend(*projected[:3], self.precision.softmax)

    def weights(self, projected: Projected) -> jax.Array:
        """-> [B, H, 1, N - first] float32: how much the probe takes from each token."""
        return normalised_weights(projected.query, projected.key)

    def project(self, x: jax.Array) -> Projected:
        """[B, N, D] -> the probe's query [B, 1, H, K], keys and values [B, N - first, H, K]."""
        query = self.query(self.probe[...])  # [1, H, K]: one token, the same for every image
        query = jnp.broadcast_to(query, (x.shape[0], *query.shape))
        key_value = constrain(
            self.key_value(x[:, self.first :]), BATCH, TOKENS, QKV, HEADS, HEAD_SIZE
        )
        return Projected(query, key_value[:, :, 0], key_value[:, :, 1], None)
