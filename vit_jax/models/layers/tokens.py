"""Images to tokens (Eq. 1), and tokens to the features that a head sees (Eq. 4)."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.core.axes import BATCH, HEAD_SIZE, HEADS, PATCH, QKV, STREAM, TOKENS, WIDTH, constrain
from vit_jax.models.layers.block import BlockSpec, Mlp, input_projections, output_projection
from vit_jax.models.layers.initialization import Initialization
from vit_jax.models.layers.kernels.xla import attend, normalised_weights
from vit_jax.models.layers.linear import Precision, affine, param
from vit_jax.models.layers.norm import norm


def whole_patches(images: jax.Array, patch_size: int) -> jax.Array:
    """[B, H, W, C] -> the same without the last rows and columns that fill no patch."""
    rows, columns = (side // patch_size * patch_size for side in images.shape[1:3])
    return images[:, :rows, :columns]


class PatchEmbedding(nnx.Module):
    """The projection of P x P patches; its kernel is [P, P, 3, D], as in a convolution.

    Args:
      channels: in the images, or in the feature maps that replace them.
      crop: whether images may have other sizes than multiples of P (`whole_patches`).
    """

    def __init__(
        self,
        patch_size: int,
        width: int,
        *,
        channels: int = 3,
        crop: bool = False,
        init: Initialization,
        precision: Precision,
        rngs: nnx.Rngs,
    ):
        shape = (patch_size, patch_size, channels, width)
        axes = (PATCH, PATCH, PATCH, WIDTH)
        self.kernel = param(init.patch_kernel, shape, axes, rngs.params())
        bias_init = functools.partial(init.patch_bias, inputs=patch_size**2 * channels)
        self.bias = param(bias_init, (width,), (WIDTH,), rngs.params())
        self.patch_size, self.crop = patch_size, crop
        self.precision = precision

    def __call__(self, images: jax.Array) -> jax.Array:
        """[B, H, W, 3] -> [B, N, D]; patches row by row."""
        # Cut and multiply instead of a strided convolution: the same sum, as one matrix product.
        p = self.patch_size
        images = whole_patches(images, p) if self.crop else images
        b, h, w, c = images.shape
        x = images.astype(self.precision.compute).reshape(b, h // p, p, w // p, p, c)
        x = x.transpose(0, 1, 3, 2, 4, 5).reshape(b, (h // p) * (w // p), p * p * c)
        kernel = self.kernel[...].reshape(p * p * c, -1)
        x = affine(x, kernel, self.bias[...], 1, self.precision)
        return constrain(x, BATCH, TOKENS, STREAM)


class FirstTokens(nnx.Module):
    """The first tokens, side by side; then the last block need not compute the others."""

    def __init__(self, number: int):
        self.num_output_tokens = number

    def __call__(self, x: jax.Array, offset: jax.Array | None = None) -> jax.Array:
        """[B, N, D] -> [B, number * D]."""
        return x[:, : self.num_output_tokens].reshape(x.shape[0], -1)


class PatchMean(nnx.Module):
    """The mean over the patches, the tokens from `first` on; or both it and the class token."""

    num_output_tokens = None

    def __init__(self, first: int, *, class_token: bool):
        self.first, self.class_token = first, class_token

    def __call__(self, x: jax.Array, offset: jax.Array | None = None) -> jax.Array:
        """[B, N, D] -> [B, D], or [B, 2 D]."""
        mean = jnp.mean(x[:, self.first :], axis=1, dtype=jnp.float32).astype(x.dtype)
        return jnp.concatenate([x[:, 0], mean], axis=1) if self.class_token else mean


class AttentionPooling(nnx.Module):
    """Attention from a learned probe to the tokens, plus a plain MLP of its normalised output.

    The multi-head attention pooling (MAP) of arXiv 1810.00825 (section 3.2) with one probe, as in
    Vision Transformers since arXiv 2106.04560 (section 3.2).

    Args:
      first: index of the first token that it sees.
    """

    num_output_tokens = None

    def __init__(self, spec: BlockSpec, *, first: int, rngs: nnx.Rngs):
        self.first = first
        # As for a matrix [1, D].
        probe_init = lambda key, shape, dtype: spec.init.kernel(key, (1, *shape), dtype)[0]
        self.probe = param(probe_init, (spec.width,), (WIDTH,), rngs.params())
        self.query = input_projections(1, spec, rngs=rngs)
        self.key_value = input_projections(2, spec, rngs=rngs)
        self.out = output_projection(spec, rngs=rngs)
        self.precision = spec.precision
        self.norm = norm(
            spec.norm, spec.width, WIDTH,
            epsilon=spec.norm_epsilon, precision=spec.precision, rngs=rngs,
        )  # fmt: skip
        plain = dataclasses.replace(spec, mlp="mlp", dense_bias=True, dropout=0.0)
        self.mlp = Mlp(plain, rngs=rngs)

    def __call__(self, x: jax.Array, offset: jax.Array | None = None) -> jax.Array:
        """[B, N, D] -> [B, D]; offset: [B, H, 1, N - first], as in SelfAttention."""
        query, key, value = self._projected(x)
        mixed = attend(query, key, value, self.precision.softmax)
        if offset is not None:
            mixed = mixed + jnp.einsum("bhqs,bshk->bqhk", offset.astype(value.dtype), value)
        x = self.out(mixed)
        x = x + self.mlp(self.norm(x), None)
        return constrain(x[:, 0], BATCH, STREAM)

    def weights(self, x: jax.Array) -> jax.Array:
        """[B, N, D] -> [B, H, 1, N - first] float32: how much the probe takes from each token."""
        query, key, _ = self._projected(x)
        return normalised_weights(query, key)

    def _projected(self, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """[B, N, D] -> the probe's query [B, 1, H, K], keys and values [B, N, H, K]."""
        query = self.query(self.probe[...])  # [1, H, K]: one token, the same for every image
        query = jnp.broadcast_to(query, (x.shape[0], *query.shape))
        key_value = constrain(
            self.key_value(x[:, self.first :]), BATCH, TOKENS, QKV, HEADS, HEAD_SIZE
        )
        return query, key_value[:, :, 0], key_value[:, :, 1]
