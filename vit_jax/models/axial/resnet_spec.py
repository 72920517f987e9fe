"""The fields of an AxialResNet, their valid combinations and costs, and the names that imply them.

The small constants are those of Scenic's implementation, by authors of arXiv 2010.11929.
"""

import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any, ClassVar

from vit_jax.core import errors
from vit_jax.core.schema.fields import ANY, COUNT, HIDDEN, IN_SHAPES, field
from vit_jax.models.bit_spec import DEPTHS, ROOT_WIDTH, UNITS, BiTSpec, units_of
from vit_jax.models.family import Family
from vit_jax.nn.resnet_spec import UnitShape, halved

PUBLISHED = ("AxialResNet-50",)
_NAME = re.compile(rf"AxialResNet-({UNITS})(?:x(\d+))?")


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


def named(name: str) -> dict[str, Any] | None:
    """The fields for "AxialResNet-50", "AxialResNet-50x2" or "AxialResNet-1-2"; None for others."""
    match = _NAME.fullmatch(name)
    units = match and units_of(match[1])
    if not match or not units or match[2] == "0":
        return None
    return {"units": units, "root_width": ROOT_WIDTH * int(match[2] or 1)}


def module() -> Callable[..., Any]:
    """The module of these fields."""
    from vit_jax.models.axial.resnet import AxialResNet

    return AxialResNet


FAMILY = Family(
    kind="An AxialResNet",
    form=f"AxialResNet-<{'|'.join(map(str, DEPTHS))}|units of stages, as 1-2>, x<width factor> "
    "behind",
    published=PUBLISHED,
    spec=AxialResNetSpec,
    named=named,
    module=module,
)
