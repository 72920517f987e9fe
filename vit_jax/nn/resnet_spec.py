"""The fields of a ResNet, its sizes, and its costs."""

import dataclasses
import math
from collections.abc import Iterator
from typing import ClassVar, NamedTuple

from vit_jax.core.errors import UserError
from vit_jax.core.schema.fields import ANY, COUNT, HIDDEN, IN_SHAPES, field
from vit_jax.nn.block_spec import StackSpec

GROUPS = 32  # of a group norm
EXPANSION = 4  # channels of a unit's output per channel of its 3 x 3 convolution
ROOT_KERNEL, POOL_KERNEL, UNIT_KERNEL = 7, 3, 3
ROOT_STRIDE = 4  # convolution and pooling together
Padding = tuple[tuple[int, int], tuple[int, int]]  # before and after, for rows and for columns


class UnitShape(NamedTuple):
    """One unit of a ResNet, and the feature maps before and after it."""

    inputs: int  # channels
    hidden: int
    stride: int
    size_in: tuple[int, int]
    size_out: tuple[int, int]
    projection: bool

    @property
    def outputs(self) -> int:
        """Channels."""
        return EXPANSION * self.hidden


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResNetSpec(StackSpec):
    """The fields of a ResNet; the defaults match the released BiTs.

    Attributes:
      pre_activation: norm and relu before each convolution, nothing after the sum
        (arXiv 1603.05027: BiT); or after each, and a relu after the sum (the hybrids).
      pad: a kind of `padding`.
    """

    pre_activation: ClassVar[bool] = True
    pad: ClassVar[str] = "fixed"
    units: tuple[int, ...] = field(
        (), "of each stage of a ResNet, such as `3,4,6,3`", bounds=COUNT, trained=IN_SHAPES,
        elsewhere=ANY,
    )  # fmt: skip
    root_width: int = field(
        64,
        "channels behind a ResNet's first convolution, a multiple of 32; behind stage s, from 1, "
        "it has `2 * 2^s` times as many",
        bounds=COUNT,
        trained=IN_SHAPES,
        elsewhere=ANY,
    )
    weight_epsilon: float = field(1e-10, trained=HIDDEN, elsewhere=ANY)
    weight_epsilon_of: str = field(
        "variance", choices=("variance", "deviation"), trained=HIDDEN, elsewhere=ANY
    )
    group_norm_epsilon: float = field(1e-5, trained=HIDDEN, elsewhere=ANY)

    @property
    def map_stride(self) -> int:
        """Pixels from one position of the feature map to the next.

        The first unit of each stage but the first halves the map.
        """
        return ROOT_STRIDE * 2 ** max(len(self.units) - 1, 0)

    @property
    def map_channels(self) -> int:
        """Channels of the feature map."""
        stages = len(self.units)
        return EXPANSION * self.root_width * 2 ** (stages - 1) if stages else self.root_width

    def check(self) -> None:
        """Raises UserError for channels that are not whole groups of a norm."""
        if self.root_width % GROUPS:
            nearest = max(1, round(self.root_width / GROUPS)) * GROUPS
            raise UserError(
                f"model.root_width={self.root_width} does not divide into the {GROUPS} groups of a "
                f"group norm; nearest: {nearest}."
            )

    def each_unit(self, image_size: tuple[int, int]) -> Iterator[UnitShape]:
        """The units, one after the other, for images of this size in pixels."""
        inputs, size = self.root_width, halved(halved(image_size))
        for stage, units in enumerate(self.units):
            for i in range(units):
                stride = 2 if stage and not i else 1
                after = halved(size) if stride == 2 else size
                unit = UnitShape(inputs, self.root_width * 2**stage, stride, size, after, i == 0)
                yield unit
                inputs, size = unit.outputs, after

    def resnet_flops(self, image_size: tuple[int, int]) -> int:
        """FLOPs of the products of one image's forward pass; a multiply-add counts 2.

        Products with the zeros of padding are not counted, as XLA does not count them.
        """
        total = 3 * self.root_width * taps(image_size, ROOT_KERNEL, 2, self.pad)
        for unit in self.each_unit(image_size):
            before, after = math.prod(unit.size_in), math.prod(unit.size_out)
            total += unit.inputs * unit.hidden * before
            total += self.middle_products(unit)
            total += unit.hidden * unit.outputs * after
            total += unit.projection * unit.inputs * unit.outputs * after
        return 2 * total

    def middle_products(self, unit: UnitShape) -> int:
        """Multiplications of one image between the 1 x 1 convolutions of a unit."""
        return unit.hidden**2 * taps(unit.size_in, UNIT_KERNEL, unit.stride, self.pad)

    def middle_elements(self, unit: UnitShape) -> int:
        """Elements of one image that are kept there: what a norm takes, and attention's weights."""
        return unit.hidden * math.prod(unit.size_out)

    def resnet_bytes(self, image_size: tuple[int, int]) -> int:
        """Bytes of one image in bfloat16 that root and units keep for their backward pass.

        They are the inputs of each norm and of the pooling, from which relus and convolutions'
        inputs follow without a product: a unit's input, and the outputs of its convolutions that
        norms take.
        """
        elements = self.root_width * math.prod(halved(image_size))
        for unit in self.each_unit(image_size):
            before, after = math.prod(unit.size_in), math.prod(unit.size_out)
            elements += (unit.inputs + unit.hidden) * before + self.middle_elements(unit)
            if not self.pre_activation:
                elements += (1 + unit.projection) * unit.outputs * after
        return 2 * elements

    def unit_input_bytes(self, image_size: tuple[int, int]) -> int:
        """Bytes of one image in bfloat16 that enter the units: the least that is kept."""
        units = self.each_unit(image_size)
        return 2 * sum(unit.inputs * math.prod(unit.size_in) for unit in units)


def halved(size: tuple[int, int]) -> tuple[int, int]:
    """Size of a feature map after a stride of 2; odd sides are rounded up."""
    return -(-size[0] // 2), -(-size[1] // 2)


def padding(kind: str, size: tuple[int, int], kernel_size: int, stride: int) -> Padding:
    """Padding around a feature map of this size, for an output of ceil(size / stride).

    "fixed": equal on both sides, whatever the size (BiT). "same": no more than is needed, an odd
    one after (TensorFlow's and JAX's SAME: the hybrids).
    """

    def of(side: int) -> tuple[int, int]:
        if kind == "fixed":
            return (kernel_size - 1) // 2, kernel_size // 2
        total = max((-(-side // stride) - 1) * stride + kernel_size - side, 0)
        return total // 2, total - total // 2

    return of(size[0]), of(size[1])


def taps(size: tuple[int, int], kernel_size: int, stride: int, pad: str) -> int:
    """The number of pairs of an output and an input position that a convolution connects."""
    pads = padding(pad, size, kernel_size, stride)
    one = 1
    for side, (before, _) in zip(size, pads, strict=True):
        starts = range(-before, -(-side // stride) * stride - before, stride)
        one *= sum(min(start + kernel_size, side) - max(start, 0) for start in starts)
    return one
