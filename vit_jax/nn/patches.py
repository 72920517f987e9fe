"""Images to tokens: cut into patches, each projected linearly (Eq. 1)."""

import functools

import jax
from flax import nnx

from vit_jax.core.axes import BATCH, PATCH, STREAM, TOKENS, WIDTH, constrain
from vit_jax.nn.initialization import VIT, Initialization
from vit_jax.nn.linear import Precision, affine, param


class PatchEmbedding(nnx.Module):
    """The projection of P x P patches; its kernel is [P, P, 3, D], as in a convolution.

    `channels`: in the images, or in the feature maps that replace them.
    """

    def __init__(
        self,
        patch_size: int,
        width: int,
        *,
        channels: int = 3,
        start: Initialization = VIT,
        precision: Precision,
        rngs: nnx.Rngs,
    ):
        shape = (patch_size, patch_size, channels, width)
        axes = (PATCH, PATCH, PATCH, WIDTH)
        self.kernel = param(start.patch_kernel, shape, axes, rngs.params())
        bias_init = functools.partial(start.patch_bias, inputs=patch_size**2 * channels)
        self.bias = param(bias_init, (width,), (WIDTH,), rngs.params())
        self.patch_size = patch_size
        self.precision = precision

    def __call__(self, images: jax.Array) -> jax.Array:
        """[B, H, W, 3] -> [B, N, D]; patches row by row.

        As in a convolution without padding, what patches leave at the bottom and right is not seen.
        """
        # Cut and multiply instead of a strided convolution: the same sum, as one matrix product.
        b, h, w, c = images.shape
        p = self.patch_size
        h, w = h // p * p, w // p * p
        x = images[:, :h, :w].astype(self.precision.compute).reshape(b, h // p, p, w // p, p, c)
        x = x.transpose(0, 1, 3, 2, 4, 5).reshape(b, (h // p) * (w // p), p * p * c)
        kernel = self.kernel[...].reshape(p * p * c, -1)
        x = affine(x, kernel, self.bias[...], 1, self.precision)
        return constrain(x, BATCH, TOKENS, STREAM)
