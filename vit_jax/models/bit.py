"""BiT: pre-activation ResNets with group norm and standardised weights (arXiv 1912.11370)."""

import dataclasses
import re
from typing import Any, ClassVar

import jax
from flax import nnx

from vit_jax.core.axes import WIDTH
from vit_jax.core.schema.constraints import Constraint
from vit_jax.models.convnet import ConvNet, ConvNetSpec
from vit_jax.models.family import Family, rule
from vit_jax.models.layers.norm import GroupNorm
from vit_jax.models.layers.resnet import Bottleneck, ResNet, ResNetSpec

# Number of layers -> units of each stage (arXiv 1603.05027; 26 from arXiv 2106.10270).
DEPTHS: dict[int, tuple[int, ...]] = {
    26: (2, 2, 2, 2),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
    200: (3, 24, 36, 3),
}
ROOT_WIDTH = 64  # at width factor 1
PUBLISHED = (
    "R26x1", "R50x1", "R50x2", "R50x3", "R101x1", "R101x3", "R152x1", "R152x2", "R152x4", "R200x3",
)  # fmt: skip

UNITS = r"\d{1,3}(?:-\d{1,3})*-?"  # layers, or the units of each stage
_NAME = re.compile(rf"R({UNITS})x(\d+)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BiTSpec(ConvNetSpec, ResNetSpec):
    """The fields of a BiT ResNet; `units` and `root_width` come from its name."""

    constraints: ClassVar[tuple[Constraint, ...]] = (
        rule(
            "units", lambda m: not m.units, "is empty: give those of each stage, such as 3,4,6,3."
        ),
        *ResNetSpec.constraints,
    )


def named(name: str) -> dict[str, Any] | None:
    """The fields for "R50x1", or "R1-2x1" by its units; None for a name of another form."""
    match = _NAME.fullmatch(name)
    units = match and units_of(match[1])
    if not match or not units or int(match[2]) == 0:
        return None
    return {"units": units, "root_width": ROOT_WIDTH * int(match[2])}


def units_of(name: str) -> tuple[int, ...] | None:
    """Units of each stage, from "50", a published number of layers, or from "1-2"; else None."""
    if name.isdigit():
        return DEPTHS.get(int(name))
    units = tuple(map(int, name.rstrip("-").split("-")))
    return units if all(units) else None


def name_of_units(units: tuple[int, ...]) -> str:
    """The name that `units_of` reads, "50" or "1-2"; a single stage is "2-"."""
    layers = {stages: number for number, stages in DEPTHS.items()}
    if units in layers:
        return str(layers[units])
    return "-".join(map(str, units)) + ("-" if len(units) == 1 else "")


class BiT(ConvNet):
    """A BiT: root, stages, a norm and a relu, the mean over all positions, a head."""

    unit: ClassVar[type[Bottleneck]] = Bottleneck

    def _make_body(self, image_size: tuple[int, int], rngs: nnx.Rngs) -> None:
        self.resnet = ResNet(self.spec, make_unit=self.unit, image_size=image_size, rngs=rngs)
        if self.spec.pre_activation:
            self.norm = GroupNorm(self.spec.map_channels, WIDTH, self.spec, rngs)

    def __call__(self, images: jax.Array, train: bool = False, rngs: Any = None) -> jax.Array:
        """[B, H, W, 3] float32, normalised -> logits [B, C] float32; headless: features [B, D].

        Training draws no random numbers: `train` and `rngs` have no effect.
        """
        return self.classify(self.features(images))

    def feature_map(self, images: jax.Array) -> jax.Array:
        self.spec.check_images(images, self.preprocess.image_size)
        x = self.resnet(images)[0]
        return jax.nn.relu(self.norm(x)) if self.spec.pre_activation else x

    def unit_maps(self, images: jax.Array, layers: tuple[int, ...]) -> tuple[jax.Array, ...]:
        self.spec.check_images(images, self.preprocess.image_size)
        return self.resnet(images, layers)[1]


FAMILY = Family(
    kind="A BiT ResNet",
    form=f"R<{'|'.join(map(str, DEPTHS))}|units of stages, as 1-2>x<width factor>",
    published=PUBLISHED,
    spec=BiTSpec,
    named=named,
    module=BiT,
)
