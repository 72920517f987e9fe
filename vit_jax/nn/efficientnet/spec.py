"""The fields of an EfficientNet, its sizes, and its costs (arXiv 1905.11946)."""

import dataclasses
import math
from collections.abc import Iterator
from typing import NamedTuple

from vit_jax.core.schema.fields import ANY, HIDDEN, IN_SHAPES, field
from vit_jax.nn.block_spec import StackSpec
from vit_jax.nn.resnet_spec import halved, taps

DIVISOR = 8  # of all numbers of channels
LEAST_KEPT = 0.9  # rounding takes no more than a tenth of the channels away
SQUEEZE = 4  # channels of a unit's input per channel between squeeze and excitation
ROOT_KERNEL = 3


class Stage(NamedTuple):
    """A stage of B0 (table 1)."""

    units: int
    kernel_size: int  # of its depthwise convolutions
    stride: int  # of its first unit
    expansion: int  # channels inside a unit per channel of its input
    channels: int  # behind each unit


STAGES = (
    Stage(1, 3, 1, 1, 16),
    Stage(2, 3, 2, 6, 24),
    Stage(2, 5, 2, 6, 40),
    Stage(3, 3, 2, 6, 80),
    Stage(3, 5, 1, 6, 112),
    Stage(4, 5, 2, 6, 192),
    Stage(1, 3, 1, 6, 320),
)
ROOT_CHANNELS, FEATURES = 32, 1280  # before and behind the stages
# A field's word -> a kind of `padding` (resnet_spec.py).
PADDINGS = {"same": "same", "symmetric": "fixed"}


class UnitShape(NamedTuple):
    """One unit, and the feature maps before and after it."""

    kernel_size: int
    stride: int
    inputs: int  # channels
    hidden: int
    outputs: int
    size_in: tuple[int, int]
    size_out: tuple[int, int]

    @property
    def expands(self) -> bool:
        """Whether a 1 x 1 convolution comes before the depthwise one."""
        return self.hidden != self.inputs

    @property
    def squeezed(self) -> int:
        """Channels between squeeze and excitation: a quarter of the unit's input."""
        return max(1, self.inputs // SQUEEZE)

    @property
    def adds(self) -> bool:
        """Whether the unit's input is added to its output."""
        return self.stride == 1 and self.inputs == self.outputs


@dataclasses.dataclass(frozen=True, kw_only=True)
class MBConvSpec(StackSpec):
    """The fields of an EfficientNet without its head; the defaults match the published weights."""

    width_coefficient: float = field(
        1.0,
        "of an EfficientNet: its channels are those of B0 times this, to multiples of 8",
        bounds=(0.01, 100),
        trained=IN_SHAPES,
        elsewhere=ANY,
    )
    depth_coefficient: float = field(
        1.0,
        "of an EfficientNet: the units of each stage are those of B0 times this, rounded up",
        bounds=(0.01, 100),
        trained=IN_SHAPES,
        elsewhere=ANY,
    )
    padding: str = field(
        "same",
        "of an EfficientNet's convolutions: `same`, TensorFlow's, as the published weights have it "
        "[this], or `symmetric`, as weights that were trained in PyTorch",
        choices=PADDINGS,
        trained=HIDDEN,
        elsewhere=ANY,
    )
    batch_norm_epsilon: float = field(
        1e-3,
        "of batch norms: what is added to the variance, 1e-3 [this]; 1e-5 in weights that were "
        "trained in PyTorch",
        bounds=(0, 1),
        trained=HIDDEN,
        elsewhere=ANY,
    )
    batch_norm_momentum: float = field(
        0.99,
        "of batch norms: what a step keeps of the running mean and variance [0.99]",
        bounds=(0, 1),
    )
    frozen_statistics: bool = field(
        False,
        "batch norms use their running mean and variance in training too, and keep them: for "
        "fine-tuning, small batches and `optim.grad_accum_steps` [false]",
    )

    @property
    def pad(self) -> str:
        """The kind of `padding` (resnet_spec.py)."""
        return PADDINGS[self.padding]

    @property
    def units(self) -> tuple[int, ...]:
        """Units of each stage."""
        return tuple(math.ceil(stage.units * self.depth_coefficient) for stage in STAGES)

    @property
    def channels(self) -> tuple[int, ...]:
        """Channels behind the root and behind each stage."""
        return tuple(map(self._scaled, (ROOT_CHANNELS, *(stage.channels for stage in STAGES))))

    @property
    def map_channels(self) -> int:
        """Channels of the feature map."""
        return self._scaled(FEATURES)

    def _scaled(self, channels: int) -> int:
        """B0's channels times the coefficient, to the nearest multiple of 8."""
        wanted = channels * self.width_coefficient
        rounded = max(DIVISOR, int(wanted + DIVISOR / 2) // DIVISOR * DIVISOR)
        return rounded + DIVISOR * (rounded < LEAST_KEPT * wanted)

    def each_unit(self, image_size: tuple[int, int]) -> Iterator[UnitShape]:
        """The units, one after the other, for images of this size in pixels."""
        size, before = halved(image_size), self.channels[0]
        for stage, units, after in zip(STAGES, self.units, self.channels[1:], strict=True):
            for i in range(units):
                stride = 1 if i else stage.stride
                size_out = halved(size) if stride == 2 else size
                hidden = stage.expansion * before
                yield UnitShape(stage.kernel_size, stride, before, hidden, after, size, size_out)
                before, size = after, size_out

    def middle_elements(self, unit: UnitShape) -> int:
        """Elements of one image behind a unit's depthwise convolution."""
        return unit.hidden * math.prod(unit.size_out)

    def map_flops(self, image_size: tuple[int, int]) -> int:
        """FLOPs of the products of one image's forward pass up to the feature map.

        A multiply-add counts 2; products with the zeros of padding are not counted, as XLA does not
        count them.
        """
        root, *_, last = self.channels
        total = 3 * root * taps(image_size, ROOT_KERNEL, 2, self.pad)
        size = halved(image_size)
        for unit in self.each_unit(image_size):
            size = unit.size_out
            total += unit.expands * unit.inputs * unit.hidden * math.prod(unit.size_in)
            total += unit.hidden * taps(unit.size_in, unit.kernel_size, unit.stride, self.pad)
            total += 2 * unit.hidden * unit.squeezed
            total += unit.hidden * unit.outputs * math.prod(size)
        return 2 * (total + last * self.map_channels * math.prod(size))

    def map_bytes(self, image_size: tuple[int, int]) -> int:
        """Bytes of one image in bfloat16 that are kept for the backward pass.

        They are the inputs of units and of each norm, from which all else follows without a
        product.
        """
        elements = self.channels[0] * math.prod(halved(image_size))
        size = halved(image_size)
        for unit in self.each_unit(image_size):
            size = unit.size_out
            elements += (unit.inputs + unit.expands * unit.hidden) * math.prod(unit.size_in)
            elements += (unit.hidden + unit.outputs) * math.prod(size)
        return 2 * (elements + (self.channels[-1] + self.map_channels) * math.prod(size))

    def unit_input_bytes(self, image_size: tuple[int, int]) -> int:
        """Bytes of one image in bfloat16 that enter the units: the least that is kept."""
        units = self.each_unit(image_size)
        return 2 * sum(unit.inputs * math.prod(unit.size_in) for unit in units)
