"""Hybrids: a ViT whose patches are cut from a ResNet's feature map (arXiv 2010.11929, 3.1).

The ResNet is as in the released hybrids: unlike a BiT it has norms and relus after its
convolutions.
"""

import dataclasses
import re
from typing import Any, ClassVar

import jax
from flax import nnx

from vit_jax.core.schema.constraints import Constraint
from vit_jax.core.schema.fields import ABOVE_0, ANY, HIDDEN, field
from vit_jax.models.bit import DEPTHS, UNITS, units_of
from vit_jax.models.family import Family, multiple, rule
from vit_jax.models.layers.resnet import ResNet, ResNetSpec
from vit_jax.models.layers.stack import unit_input_bytes
from vit_jax.models.layers.tokens import PatchEmbedding
from vit_jax.models.vit import SIZES, ViT, ViTSpec, of_shape

# From the paper, and from AugReg (arXiv 2106.10270).
PUBLISHED = (
    "R+ViT-Ti/16", "R26+ViT-S/32", "R50+ViT-B/16", "R50+ViT-B/32", "R50+ViT-L/16", "R50+ViT-L/32",
)  # fmt: skip

_NAME = re.compile(r"R([\d-]*)\+ViT-([A-Za-z0-9]+)/(\d{1,4})")


@dataclasses.dataclass(frozen=True, kw_only=True)
class HybridSpec(ViTSpec, ResNetSpec):
    """The fields of a ViT, and of the ResNet before it; `patch_size` is in pixels of the image.

    The style and the epsilons match the released hybrids.
    """

    pre_activation: ClassVar[bool] = False
    pad: ClassVar[str] = "same"
    weight_epsilon: float = field(1e-5, trained=HIDDEN, elsewhere=ANY)
    weight_epsilon_of: str = field(
        "deviation", choices=("variance", "deviation"), trained=HIDDEN, elsewhere=ANY
    )
    group_norm_epsilon: float = field(1e-6, bounds=(ABOVE_0, 1), trained=HIDDEN, elsewhere=ANY)

    @property
    def map_patch_size(self) -> int:
        """Side of a patch in positions of the feature map."""
        return self.patch_size // self.map_stride

    constraints: ClassVar[tuple[Constraint, ...]] = (
        *ViTSpec.constraints,
        *ResNetSpec.constraints,
        rule("crop_to_patches", lambda m: m.crop_to_patches, "does not go with a hybrid."),
        multiple(
            "patch_size", lambda m: m.map_stride,
            "does not divide by {model.map_stride}, the stride of the map of units={model.units}",
        ),
    )  # fmt: skip

    def activation_bytes(self, image_size: tuple[int, int]) -> int:
        return self.map_bytes(image_size) + super().activation_bytes(image_size)

    def block_input_bytes(self, image_size: tuple[int, int]) -> int:
        unit_bytes = unit_input_bytes(self.each_unit(image_size))
        return unit_bytes + super().block_input_bytes(image_size)


def named(name: str) -> dict[str, Any] | None:
    """The fields for "R50+ViT-B/16"; None for a name of another form.

    For /16 the units of the fourth stage are moved to the third, for /32 all four are kept. R alone
    is the root, R1-2 a ResNet of these units; the released R+ViT-Ti/16 cuts its map into patches of
    8 x 8, which are 32 pixels.
    """
    match = _NAME.fullmatch(name)
    size = match and (SIZES.get(match[2]) or of_shape(match[2]))
    if not match or not size:
        return None
    patch_size = int(match[3])
    if not match[1]:
        return {"patch_size": 32, "units": (), **size} if patch_size == 16 else None
    if "-" in match[1]:
        units = units_of(match[1]) if re.fullmatch(UNITS, match[1]) else None
        return {"patch_size": patch_size, "units": units, **size} if units and patch_size else None
    if int(match[1]) not in DEPTHS or patch_size not in (16, 32):
        return None
    first, second, third, fourth = DEPTHS[int(match[1])]
    units = (first, second, third + fourth) if patch_size == 16 else (first, second, third, fourth)
    return {"patch_size": patch_size, "units": units, **size}


class ResNetPatches(nnx.Module):
    """Images to tokens: a ResNet, and a projection of its feature map's patches."""

    def __init__(self, spec: HybridSpec, *, rngs: nnx.Rngs):
        self.resnet = ResNet(spec, rngs=rngs)
        self.projection = PatchEmbedding(spec, spec.map_patch_size, spec.map_channels, rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        """[B, H, W, 3] -> [B, N, D]; patches row by row."""
        return self.projection(self.resnet(images)[0])


class Hybrid(ViT):
    """A ViT on top of a ResNet."""

    spec: HybridSpec

    def _make_patches(self, rngs: nnx.Rngs) -> nnx.Module:
        return ResNetPatches(self.spec, rngs=rngs)


FAMILY = Family(
    kind="A hybrid",
    form=f"R<{'|'.join(map(str, DEPTHS))}>+ViT-<size>/<16|32>, R+ViT-<size>/16, "
    "R<units of stages, as 1-2>+ViT-<size>/<patch>",
    published=PUBLISHED,
    spec=HybridSpec,
    named=named,
    module=Hybrid,
)
