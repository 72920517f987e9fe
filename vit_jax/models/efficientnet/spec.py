"""The fields of an EfficientNet, its costs, and the names that imply them."""

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from vit_jax.core.schema.fields import field
from vit_jax.core.token_layout import TokenLayout
from vit_jax.models.family import Family, ModelSpec
from vit_jax.nn.efficientnet.spec import MBConvSpec

MAP_STRIDE = 32  # the root and four of the stages halve the map


class Published(NamedTuple):
    """One of the published models."""

    width_coefficient: float
    depth_coefficient: float
    image_size_px: int
    dropout: float


# From the released code of arXiv 1905.11946; L2 from arXiv 1911.04252, table 7.
SIZES = {
    "B0": Published(1.0, 1.0, 224, 0.2),
    "B1": Published(1.0, 1.1, 240, 0.2),
    "B2": Published(1.1, 1.2, 260, 0.3),
    "B3": Published(1.2, 1.4, 300, 0.3),
    "B4": Published(1.4, 1.8, 380, 0.4),
    "B5": Published(1.6, 2.2, 456, 0.4),
    "B6": Published(1.8, 2.6, 528, 0.5),
    "B7": Published(2.0, 3.1, 600, 0.5),
    "L2": Published(4.3, 5.3, 800, 0.5),
}
HUNDREDTHS = range(1, 1001)  # coefficients, in hundredths, that `with_sizes` tries
_NUMBER = r"\d{1,2}(?:\.\d{1,2})?"
_NAME = re.compile(rf"EfficientNet-(?:(B[0-7]|L2)|({_NUMBER})x({_NUMBER}))")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EfficientNetSpec(ModelSpec, MBConvSpec):
    """The fields of an EfficientNet."""

    dropout: float = field(
        0.2,
        "rate [0]; of an EfficientNet's features alone, by its name [0.2 to 0.5]",
        bounds=(0, 1),
    )
    stochastic_depth: float = field(
        0.2,
        "rate at the last block, rising linearly from 0 at the first [0; of an EfficientNet 0.2]",
        bounds=(0, 1),
    )

    @property
    def depth(self) -> int:
        """Number of units."""
        return sum(self.units)

    @property
    def stride(self) -> int:
        """Pixels from one token to the next."""
        return MAP_STRIDE

    def check(self) -> None:
        """Every combination of fields is a model."""

    def token_layout(self, image_size: tuple[int, int]) -> TokenLayout:
        """Layout of the tokens for images of this size in pixels."""
        rows, columns = (-(-side // self.stride) for side in image_size)
        return TokenLayout((rows, columns), class_token=False)

    def forward_flops(self, num_classes: int, image_size: tuple[int, int]) -> int:
        """FLOPs of the products of one image's forward pass; a multiply-add counts 2."""
        return self.map_flops(image_size) + 2 * self.map_channels * num_classes

    activation_bytes = MBConvSpec.map_bytes
    block_input_bytes = MBConvSpec.unit_input_bytes


def named(name: str) -> dict[str, Any] | None:
    """The fields for "EfficientNet-B0", or "EfficientNet-1.5x2" by its coefficients of width and
    depth; None for a name of another form.
    """
    match = _NAME.fullmatch(name)
    if not match:
        return None
    if match[1]:
        own = SIZES[match[1]]
        return {
            "width_coefficient": own.width_coefficient,
            "depth_coefficient": own.depth_coefficient,
            "dropout": own.dropout,
        }
    width, depth = float(match[2]), float(match[3])
    if not width or not depth:
        return None
    return {"width_coefficient": width, "depth_coefficient": depth}


def with_sizes(units: Sequence[int], channels: Sequence[int], map_channels: int) -> str | None:
    """The name of a model with these sizes, a published one if there is one; else None.

    The arguments are the properties of EfficientNetSpec. Several coefficients may give the same
    sizes: the smallest one with two decimals is taken.
    """

    def fits(spec: MBConvSpec) -> tuple[bool, bool]:
        wide = (spec.channels, spec.map_channels) == (tuple(channels), map_channels)
        return wide, spec.units == tuple(units)

    for size in SIZES:
        name = f"EfficientNet-{size}"
        if all(fits(EfficientNetSpec(**(named(name) or {})))):
            return name
    tried = [hundredths / 100 for hundredths in HUNDREDTHS]
    width = next((x for x in tried if fits(MBConvSpec(width_coefficient=x))[0]), None)
    depth = next((x for x in tried if fits(MBConvSpec(depth_coefficient=x))[1]), None)
    return f"EfficientNet-{width:g}x{depth:g}" if width and depth else None


def module() -> Callable[..., Any]:
    """The module of these fields."""
    from vit_jax.models.efficientnet.network import EfficientNet

    return EfficientNet


FAMILY = Family(
    kind="An EfficientNet",
    form=f"EfficientNet-<{'|'.join(SIZES)}|width x depth coefficients, as 1.1x1.2>",
    published=tuple(f"EfficientNet-{size}" for size in SIZES),
    spec=EfficientNetSpec,
    named=named,
    module=module,
)
