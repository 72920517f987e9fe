"""AxialResNet: a ResNet with axial attention for its 3 x 3 convolutions (arXiv 2003.07853).

As a baseline in arXiv 2010.11929, appendix D.6, with group norms and standardised weights.
"""

import functools

from flax import nnx

from vit_jax.models.axial.resnet_spec import AxialResNetSpec
from vit_jax.models.bit import BiT
from vit_jax.nn.axial.unit import AxialUnit
from vit_jax.nn.resnet import MakeUnit, ResNet


class AxialResNet(BiT):
    """A BiT with other units; its learned offsets are for images of one size."""

    spec: AxialResNetSpec

    def _make_resnet(self, image_size: tuple[int, int], rngs: nnx.Rngs) -> ResNet:
        """Images -> the feature map."""
        spec = self.spec

        def units_of(stage: int) -> tuple[MakeUnit, MakeUnit]:
            first, others = (
                functools.partial(AxialUnit, num_heads=spec.num_heads, size=size)
                for size in spec.map_sizes(image_size, stage)
            )
            return first, others

        return ResNet(spec, units_of=units_of, rngs=rngs)
