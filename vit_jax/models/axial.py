"""Models with axial attention: each attends along rows, then along columns.

Axial-ViT (arXiv 2010.11929, appendix D.6) is a ViT of such blocks. AxialResNet (arXiv 2003.07853, a
baseline in that appendix) is a ResNet with axial attention for its 3 x 3 convolutions, with group
norms and standardised weights; its small constants are those of Scenic's implementation, by authors
of arXiv 2010.11929.
"""

import dataclasses
import functools
import math
import re
from typing import Any, ClassVar

from flax import nnx

from vit_jax.core import errors
from vit_jax.core.schema.fields import ANY, COUNT, HIDDEN, IN_SHAPES, field
from vit_jax.core.token_layout import TokenLayout
from vit_jax.models import vit
from vit_jax.models.bit import DEPTHS, ROOT_WIDTH, UNITS, BiT, BiTSpec, units_of
from vit_jax.models.family import Family
from vit_jax.models.vit import SIZES, ViT, ViTSpec
from vit_jax.nn.axial.lines import AxialBlock
from vit_jax.nn.axial.unit import AxialUnit
from vit_jax.nn.kernels import choice
from vit_jax.nn.resnet import MakeUnit, ResNet
from vit_jax.nn.resnet_spec import UnitShape, halved

PREFIX = "Axial-"  # before the name of a ViT
VIT_PUBLISHED = ("Axial-ViT-B/16", "Axial-ViT-B/32")  # figure 13


@dataclasses.dataclass(frozen=True, kw_only=True)
class AxialViTSpec(ViTSpec):
    """The fields of a ViT; each of its `depth` blocks is two here, along rows and along columns.

    The tokens are a grid, so there is no class token: the mean over the patches (`pool=avg`, which
    names imply) or attention pooling is what the head sees.
    """

    def check(self) -> None:
        """Raises UserError for fields that cannot be combined."""
        if self.has_class_token or self.registers:
            what = f"pool={self.pool}" if self.has_class_token else f"registers={self.registers}"
            raise errors.UserError(
                f"model.{what} does not go with an Axial-ViT, whose tokens are the patches, a grid "
                "without further ones: set pool=avg or pool=map, and registers=0."
            )
        if self.position_embedding == "relative":
            raise errors.UserError(
                "model.position_embedding=relative is of places in one sequence, which an "
                "Axial-ViT does not attend over: take another, such as learned_1d or rotary_2d."
            )
        if self.attention not in (choice.AUTO, choice.XLA):
            raise errors.UserError(
                f"model.attention={self.attention} is for more tokens than a row or a column of an "
                "Axial-ViT has: set model.attention=auto."
            )
        super().check()

    def attended(self, layout: TokenLayout) -> tuple[int, ...]:
        """For each attention of a block: the number of tokens that each token takes from."""
        rows, columns = layout.grid
        return columns, rows


def named_vit(name: str) -> dict[str, Any] | None:
    """The fields for "Axial-ViT-B/16"; None for a name of another form."""
    plain = name.removeprefix(PREFIX)
    fields = None if plain == name else vit.named(plain)
    is_plain = fields is not None and fields.keys() <= {"patch_size", *SIZES["B"]}
    return {**fields, "pool": "avg"} if fields and is_plain else None


class AxialViT(ViT):
    """A ViT of axial blocks: twice as many attentions, each along one axis, and as many MLPs."""

    spec: AxialViTSpec

    def _make_block(self, layout: TokenLayout, **arguments: Any) -> nnx.Module:
        """A block for tokens of this layout."""
        return AxialBlock(self.spec, grid=layout.grid, **arguments)


AXIAL_VIT = Family(
    kind="An Axial-ViT",
    form="Axial-ViT-<size>/<patch>",
    published=VIT_PUBLISHED,
    spec=AxialViTSpec,
    named=named_vit,
    module=AxialViT,
)


RESNET_PUBLISHED = ("AxialResNet-50",)
_RESNET_NAME = re.compile(rf"AxialResNet-({UNITS})(?:x(\d+))?")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AxialResNetSpec(BiTSpec):
    """The fields of a BiT, whose norms and relus are behind its convolutions, and heads."""

    pre_activation: ClassVar[bool] = False
    pad: ClassVar[str] = "same"
    num_heads: int = field(8, "of the attention", bounds=COUNT, trained=IN_SHAPES, elsewhere=ANY)
    group_norm_epsilon: float = field(1e-4, trained=HIDDEN, elsewhere=ANY)

    def check(self) -> None:
        """Raises UserError for a model that cannot be built."""
        super().check()
        if self.root_width % (2 * self.num_heads):
            fitting = [
                n for n in range(1, self.root_width // 2 + 1) if self.root_width % (2 * n) == 0
            ]
            nearest = min(fitting, key=lambda n: abs(n - self.num_heads))
            raise errors.UserError(
                f"model.num_heads={self.num_heads}: twice as many do not divide "
                f"model.root_width={self.root_width}; nearest: {nearest}."
            )

    def map_sizes(self, image_size: tuple[int, int], stage: int) -> tuple[tuple[int, int], ...]:
        """(height, width) of the maps that a stage's first unit, and the others, attend over."""
        size = halved(halved(image_size))
        for _ in range(stage - 1):
            size = halved(size)
        return size, halved(size) if stage else size

    def middle_products(self, unit: UnitShape) -> int:
        """Multiplications of one image between the 1 x 1 convolutions of a unit.

        For each axis the projection to queries, keys and values, three products of channels' halves
        for the logits, and two of all channels for what is mixed.
        """
        positions = math.prod(unit.size_in)
        projections = 2 * 2 * unit.hidden**2
        attention = sum(unit.size_in) * (3 * unit.hidden // 2 + 2 * unit.hidden)
        return positions * (projections + attention)

    def middle_elements(self, unit: UnitShape) -> int:
        """Elements of one image that are kept there: what a norm takes, and attention's weights."""
        of_norms = 2 * 3 * unit.hidden
        return math.prod(unit.size_in) * (of_norms + self.num_heads * sum(unit.size_in))


def named_resnet(name: str) -> dict[str, Any] | None:
    """The fields for "AxialResNet-50", "AxialResNet-50x2" or "AxialResNet-1-2"; None for others."""
    match = _RESNET_NAME.fullmatch(name)
    units = match and units_of(match[1])
    if not match or not units or match[2] == "0":
        return None
    return {"units": units, "root_width": ROOT_WIDTH * int(match[2] or 1)}


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


AXIAL_RESNET = Family(
    kind="An AxialResNet",
    form=f"AxialResNet-<{'|'.join(map(str, DEPTHS))}|units of stages, as 1-2>, x<width factor> "
    "behind",
    published=RESNET_PUBLISHED,
    spec=AxialResNetSpec,
    named=named_resnet,
    module=AxialResNet,
)
