"""Hybrids: a ViT whose patches are cut from a ResNet's feature map (arXiv 2010.11929, 3.1).

The ResNet is as in the released hybrids: unlike a BiT it has norms and relus after its
convolutions.
"""

import jax
from flax import nnx

from vit_jax.models.hybrid_spec import HybridSpec
from vit_jax.models.vit import ViT
from vit_jax.nn.patches import PatchEmbedding
from vit_jax.nn.resnet import ResNet


class ResNetPatches(nnx.Module):
    """Images to tokens: a ResNet, and a projection of its feature map's patches."""

    def __init__(self, spec: HybridSpec, *, rngs: nnx.Rngs):
        self.resnet = ResNet(spec, rngs=rngs)
        self.projection = PatchEmbedding(
            spec.map_patch_size,
            spec.width,
            channels=spec.map_channels,
            start=spec.start,
            precision=spec.precision,
            rngs=rngs,
        )

    def __call__(self, images: jax.Array) -> jax.Array:
        """[B, H, W, 3] -> [B, N, D]; patches row by row."""
        return self.projection(self.resnet(images)[0])


class Hybrid(ViT):
    """A ViT on top of a ResNet."""

    spec: HybridSpec

    def _make_patches(self, rngs: nnx.Rngs) -> nnx.Module:
        return ResNetPatches(self.spec, rngs=rngs)
