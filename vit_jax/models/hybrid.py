"""Hybrids: a ViT whose patches are cut from a ResNet's feature map (arXiv 2010.11929, 3.1).

The ResNet is as in the released hybrids: unlike a BiT it has norms and relus after its
convolutions.
"""

import dataclasses
import re
from typing import Any

import jax
from flax import nnx

from vit_jax.core import errors
from vit_jax.core.schema.fields import ANY, HIDDEN, field
from vit_jax.models import vit
from vit_jax.models.bit import DEPTHS, UNITS, units_of
from vit_jax.models.family import Family
from vit_jax.models.preprocess import Preprocess
from vit_jax.models.vit import ViT, ViTSpec, stride, token_layout
from vit_jax.models.vit_names import of_shape
from vit_jax.nn.linear import Precision
from vit_jax.nn.patches import PatchEmbedding
from vit_jax.nn.resnet import resnet
from vit_jax.nn.resnet.resnet import ResNet, ResNetSpec, ResNetStyle

# From the paper, and from AugReg (arXiv 2106.10270).
PUBLISHED = (
    "R+ViT-Ti/16", "R26+ViT-S/32", "R50+ViT-B/16", "R50+ViT-B/32", "R50+ViT-L/16", "R50+ViT-L/32",
)  # fmt: skip

_NAME = re.compile(r"R([\d-]*)\+ViT-([A-Za-z0-9]+)/(\d{1,4})")


@dataclasses.dataclass(frozen=True, kw_only=True)
class HybridSpec(ViTSpec, ResNetSpec):
    """The fields of a ViT, and of the ResNet before it; `patch_size` is in pixels of the image.

    The epsilons match the released hybrids.
    """

    weight_epsilon: float = field(1e-5, trained=HIDDEN, elsewhere=ANY)
    weight_epsilon_of: str = field(
        "deviation", choices=("variance", "deviation"), trained=HIDDEN, elsewhere=ANY
    )
    group_norm_epsilon: float = field(1e-6, trained=HIDDEN, elsewhere=ANY)

    @property
    def style(self) -> ResNetStyle:
        """The style of the released hybrids."""
        return ResNetStyle(False, "same", self.standardization, self.group_norm_epsilon)

    @property
    def map_patch_size(self) -> int:
        """Side of a patch in positions of the feature map."""
        return self.patch_size // self.shape.stride


def named(name: str) -> dict[str, Any] | None:
    """The fields for "R50+ViT-B/16"; None for a name of another form.

    For /16 the units of the fourth stage are moved to the third, for /32 all four are kept. R alone
    is the root, R1-2 a ResNet of these units; the released R+ViT-Ti/16 cuts its map into patches of
    8 x 8, which are 32 pixels.
    """
    match = _NAME.fullmatch(name)
    size = match and (vit.SIZES.get(match[2]) or of_shape(match[2], {}))
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


def check(spec: HybridSpec) -> None:
    """Raises UserError for a model that cannot be built."""
    vit.check(spec)
    resnet.check(spec)
    if spec.patch_size % spec.shape.stride:
        raise errors.UserError(
            f"model.units={spec.units} gives a feature map of stride {spec.shape.stride}, which "
            f"patches of {spec.patch_size} pixels do not divide into: give fewer stages."
        )


class ResNetPatches(nnx.Module):
    """Images to tokens: a ResNet, and a projection of its feature map's patches."""

    def __init__(self, spec: HybridSpec, *, precision: Precision, rngs: nnx.Rngs):
        self.resnet = ResNet(
            spec.shape,
            spec.style,
            scan=spec.scan,
            remat=spec.remat,
            precision=precision,
            rngs=rngs,
        )
        self.projection = PatchEmbedding(
            spec.map_patch_size,
            spec.width,
            channels=spec.shape.channels,
            start=spec.start,
            precision=precision,
            rngs=rngs,
        )

    def __call__(self, images: jax.Array) -> jax.Array:
        """[B, H, W, 3] -> [B, N, D]; patches row by row."""
        return self.projection(self.resnet(images)[0])


def create(
    spec: HybridSpec,
    *,
    num_classes: int,
    image_size: tuple[int, int],
    preprocess: Preprocess,
    rngs: nnx.Rngs,
) -> ViT:
    """A ViT on top of a ResNet; arguments as for ViT."""
    return ViT(
        spec,
        num_classes=num_classes,
        image_size=image_size,
        preprocess=preprocess,
        rngs=rngs,
        patches=ResNetPatches(spec, precision=spec.precision, rngs=rngs),
    )


def forward_flops(spec: HybridSpec, *, num_classes: int, image_size: tuple[int, int]) -> int:
    """FLOPs of the products of one image's forward pass; a multiply-add counts 2."""
    rows, columns = token_layout(spec, image_size).grid
    patch = spec.map_patch_size**2 * spec.shape.channels
    return (
        resnet.forward_flops(spec.shape, spec.style.pad, image_size)
        + 2 * rows * columns * patch * spec.width
        + vit.flops_behind_patches(spec, num_classes=num_classes, image_size=image_size)
    )


def activation_bytes(spec: HybridSpec, *, image_size: tuple[int, int]) -> int:
    """Bytes of one image in bfloat16 that units and blocks keep for their backward pass."""
    of_units = resnet.activation_bytes(spec.shape, pre_activation=False, image_size=image_size)
    return of_units + vit.activation_bytes(spec, image_size=image_size)


def block_input_bytes(spec: HybridSpec, *, image_size: tuple[int, int]) -> int:
    """Bytes of one image in bfloat16 that enter units and blocks."""
    of_units = resnet.unit_input_bytes(spec.shape, image_size)
    return of_units + vit.block_input_bytes(spec, image_size=image_size)


FAMILY = Family(
    kind="A hybrid",
    form=f"R<{'|'.join(map(str, DEPTHS))}>+ViT-<size>/<16|32>, R+ViT-<size>/16, "
    "R<units of stages, as 1-2>+ViT-<size>/<patch>",
    published=PUBLISHED,
    spec=HybridSpec,
    named=named,
    check=check,
    create=create,
    token_layout=token_layout,
    stride=stride,
    forward_flops=forward_flops,
    activation_bytes=activation_bytes,
    block_input_bytes=block_input_bytes,
)
