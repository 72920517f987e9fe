"""Images to tokens: cut into patches, each projected linearly (Eq. 1)."""

import functools

import jax
from flax import nnx

from vit_jax.core.axes import BATCH, PATCH, STREAM, TOKENS, WIDTH, constrain
from vit_jax.nn.initialization import VIT, Initialization
from vit_jax.nn.linear import Precision, affine, param


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
        start: Initialization = VIT,
        precision: Precision,
        rngs: nnx.Rngs,
    ):
        shape = (patch_size, patch_size, channels, width)
        axes = (PATCH, PATCH, PATCH, WIDTH)
        self.kernel = param(start.patch_kernel, shape, axes, rngs.params())
        bias_init = functools.partial(start.patch_bias, inputs=patch_size**2 * channels)
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
