"""A ResNet of bottleneck units without a head, from images to a feature map."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn import initializers

from vit_jax.core.axes import BATCH, CHANNELS, PATCH, STREAM, WIDTH, constrain
from vit_jax.core.errors import UserError
from vit_jax.core.schema.fields import ANY, COUNT, HIDDEN, IN_SHAPES, field
from vit_jax.nn.linear import Precision
from vit_jax.nn.norm import GROUPS, GroupNorm
from vit_jax.nn.resnet.convolution import Standardization, StdConv, padding
from vit_jax.nn.stack import Stack

EXPANSION = 4  # channels of a unit's output per channel of its 3 x 3 convolution
ROOT_KERNEL, POOL_KERNEL, UNIT_KERNEL = 7, 3, 3
ROOT_STRIDE = 4  # convolution and pooling together


@dataclasses.dataclass(frozen=True)
class ResNetStyle:
    """Differences between the released ResNets other than their sizes.

    Attributes:
      pre_activation: norm and relu before each convolution, nothing after the sum
        (arXiv 1603.05027: BiT); or after each, and a relu after the sum (the hybrids).
      pad: a kind of convolution.padding.
      standardize: for the convolutions' weights.
      group_norm_epsilon: for the group norms.
    """

    pre_activation: bool
    pad: str
    standardize: Standardization
    group_norm_epsilon: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResNetSpec:
    """The fields of a ResNet; the defaults match the released BiTs."""

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
    weight_epsilon: float = field(1e-10, trained=HIDDEN, elsewhere=ANY)  # of Standardization
    weight_epsilon_of: str = field(
        "variance", choices=("variance", "deviation"), trained=HIDDEN, elsewhere=ANY
    )
    group_norm_epsilon: float = field(1e-5, trained=HIDDEN, elsewhere=ANY)

    @property
    def shape(self) -> ResNetShape:
        """The sizes."""
        return ResNetShape(self.units, self.root_width)

    @property
    def standardization(self) -> Standardization:
        """The standardisation of the convolutions' weights."""
        return Standardization(self.weight_epsilon, self.weight_epsilon_of)


def check(spec: ResNetSpec) -> None:
    """Raises UserError for channels that are not whole groups of a norm."""
    if spec.root_width % GROUPS:
        nearest = max(1, round(spec.root_width / GROUPS)) * GROUPS
        raise UserError(
            f"model.root_width={spec.root_width} does not divide into the {GROUPS} groups of a "
            f"group norm; nearest: {nearest}."
        )


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


@dataclasses.dataclass(frozen=True)
class ResNetShape:
    """The sizes of a ResNet.

    Attributes:
      units: in each stage; the first unit halves the feature map, except in the first stage.
      root_width: channels after the root; stage s (from 0) outputs 4 * 2^s times as many.
    """

    units: tuple[int, ...]
    root_width: int

    @property
    def stride(self) -> int:
        """Pixels from one position of the feature map to the next."""
        return ROOT_STRIDE * 2 ** max(len(self.units) - 1, 0)

    @property
    def channels(self) -> int:
        """Channels of the feature map."""
        stages = len(self.units)
        return EXPANSION * self.root_width * 2 ** (stages - 1) if stages else self.root_width

    def each(self, image_size: tuple[int, int]) -> Iterator[UnitShape]:
        """The units, one after the other, for images of this size in pixels."""
        inputs, size = self.root_width, halved(halved(image_size))
        for stage, units in enumerate(self.units):
            for i in range(units):
                stride = 2 if stage and not i else 1
                after = halved(size) if stride == 2 else size
                unit = UnitShape(inputs, self.root_width * 2**stage, stride, size, after, i == 0)
                yield unit
                inputs, size = unit.outputs, after


def halved(size: tuple[int, int]) -> tuple[int, int]:
    """Size of a feature map after a stride of 2; odd sides are rounded up."""
    return -(-size[0] // 2), -(-size[1] // 2)


class Bottleneck(nnx.Module):
    """A bottleneck unit: [B, H, W, I] -> [B, H / stride, W / stride, O]; O = 4 * hidden.

    Args:
      channels: (I, hidden).
      stride: of the 3 x 3 convolution, and of the shortcut.
      projection: whether the shortcut is a 1 x 1 convolution; otherwise I must equal O.
    """

    def __init__(
        self,
        channels: tuple[int, int],
        *,
        stride: int,
        projection: bool,
        style: ResNetStyle,
        precision: Precision,
        rngs: nnx.Rngs,
    ):
        inputs, hidden = channels
        outputs = EXPANSION * hidden
        common: dict[str, Any] = {"precision": precision, "rngs": rngs}
        conv = {"pad": style.pad, "standardize": style.standardize, **common}
        norm = {"epsilon": style.group_norm_epsilon, **common}
        self.conv1 = StdConv(1, (inputs, hidden), (WIDTH, CHANNELS), **conv)
        self.conv2 = StdConv(3, (hidden, hidden), (WIDTH, CHANNELS), stride=stride, **conv)
        self.conv3 = StdConv(1, (hidden, outputs), (CHANNELS, WIDTH), **conv)
        if projection:
            axes = (STREAM, WIDTH)
            self.projection = StdConv(1, (inputs, outputs), axes, stride=stride, **conv)
        if style.pre_activation:
            self.norm1 = GroupNorm(inputs, WIDTH, **norm)
            self.norm2 = GroupNorm(hidden, CHANNELS, **norm)
            self.norm3 = GroupNorm(hidden, CHANNELS, **norm)
        else:
            self.norm1 = GroupNorm(hidden, CHANNELS, **norm)
            self.norm2 = GroupNorm(hidden, CHANNELS, **norm)
            # A unit starts as its shortcut alone, as in the released code.
            self.norm3 = GroupNorm(outputs, WIDTH, scale_init=initializers.zeros, **norm)
            if projection:
                self.projection_norm = GroupNorm(outputs, WIDTH, **norm)
        self.projects, self.pre_activation = projection, style.pre_activation

    def __call__(self, x: jax.Array, key: Any = None, drop_rate: Any = None) -> jax.Array:
        """Applies the unit; `key` and `drop_rate`, which nn/stack.py passes, are not used."""
        y = self._pre_activated(x) if self.pre_activation else self._post_activated(x)
        return constrain(y, BATCH, None, None, STREAM)

    def _pre_activated(self, x: jax.Array) -> jax.Array:
        y = jax.nn.relu(self.norm1(x))
        shortcut = self.projection(y) if self.projects else x
        y = self.conv1(y)
        y = self.conv2(jax.nn.relu(self.norm2(y)))
        return shortcut + self.conv3(jax.nn.relu(self.norm3(y)))

    def _post_activated(self, x: jax.Array) -> jax.Array:
        shortcut = self.projection_norm(self.projection(x)) if self.projects else x
        y = jax.nn.relu(self.norm1(self.conv1(x)))
        y = jax.nn.relu(self.norm2(self.conv2(y)))
        return jax.nn.relu(shortcut + self.norm3(self.conv3(y)))


class ResNet(nnx.Module):
    """A ResNet's root and stages; `stage1` and so on are a first unit and a stack of equal ones."""

    def __init__(
        self,
        shape: ResNetShape,
        style: ResNetStyle,
        *,
        scan: bool,
        remat: str,
        precision: Precision,
        rngs: nnx.Rngs,
    ):
        self.shape, self.style = shape, style
        self.root = Root(shape.root_width, style, precision=precision, rngs=rngs)
        self.stages = len(shape.units)
        run: dict[str, Any] = {"scan": scan, "remat": remat, "precision": precision, "rngs": rngs}
        inputs = shape.root_width
        for stage, units in enumerate(shape.units):
            channels = (inputs, shape.root_width * 2**stage)
            stride = 2 if stage else 1
            setattr(self, f"stage{stage + 1}", Stage(channels, units, stride, style, **run))
            inputs = EXPANSION * channels[1]

    def __call__(
        self, images: jax.Array, layers: tuple[int, ...] = ()
    ) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        """[B, H, W, 3] -> ([B, h, w, C], feature maps after the units `layers`, from 0)."""
        x = self.root(images)
        all_maps: list[jax.Array] = []
        for i in range(self.stages):
            x, maps = getattr(self, f"stage{i + 1}")(x, keep=bool(layers))
            all_maps += maps
        return x, tuple(all_maps[i] for i in layers)


class Root(nnx.Module):
    """7 x 7 convolution, stride 2; norm and relu unless pre-activation; 3 x 3 max, stride 2."""

    def __init__(self, width: int, style: ResNetStyle, *, precision: Precision, rngs: nnx.Rngs):
        common: dict[str, Any] = {"precision": precision, "rngs": rngs}
        self.conv = StdConv(
            ROOT_KERNEL,
            (3, width),
            (PATCH, WIDTH),
            stride=2,
            pad=style.pad,
            standardize=style.standardize,
            **common,
        )
        if not style.pre_activation:
            self.norm = GroupNorm(width, WIDTH, epsilon=style.group_norm_epsilon, **common)
        self.style = style

    def __call__(self, images: jax.Array) -> jax.Array:
        """[B, H, W, 3] -> [B, ceil(H / 4), ceil(W / 4), width]."""
        x = self.conv(images)
        if not self.style.pre_activation:
            x = jax.nn.relu(self.norm(x))
        # Padded with zeros: the released BiTs were trained so, and after a relu it changes nothing.
        rows, columns = padding(self.style.pad, (x.shape[1], x.shape[2]), POOL_KERNEL, 2)
        x = jnp.pad(x, ((0, 0), rows, columns, (0, 0)))
        x = nnx.max_pool(x, (POOL_KERNEL, POOL_KERNEL), strides=(2, 2), padding="VALID")
        return constrain(x, BATCH, None, None, STREAM)


class Stage(nnx.Module):
    """A stage of units of one width: the first resizes the feature map, the others are equal."""

    def __init__(
        self,
        channels: tuple[int, int],
        units: int,
        stride: int,
        style: ResNetStyle,
        *,
        scan: bool,
        remat: str,
        precision: Precision,
        rngs: nnx.Rngs,
    ):
        def stack(depth: int, inputs: int, stride: int, projection: bool) -> Stack:
            def unit(rngs: nnx.Rngs) -> Bottleneck:
                return Bottleneck(
                    (inputs, channels[1]),
                    stride=stride,
                    projection=projection,
                    style=style,
                    precision=precision,
                    rngs=rngs,
                )

            return Stack(
                unit,
                depth=depth,
                stochastic_depth=0.0,
                scan=scan and depth > 1,
                remat=remat,
                converts=precision.compute != jnp.float32,
                rngs=rngs,
            )

        self.first = stack(1, channels[0], stride, projection=True)
        if units > 1:
            self.rest = stack(units - 1, EXPANSION * channels[1], 1, projection=False)
        self.units = units

    def __call__(self, x: jax.Array, keep: bool) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        """[B, H, W, I] -> ([B, H', W', O], with `keep` the feature maps after all units)."""
        x, _ = self.first(x, None)
        if self.units == 1:
            return x, (x,)
        y, others = self.rest(x, None, tuple(range(self.units - 1)) if keep else ())
        return y, (x, *others)


def forward_flops(shape: ResNetShape, pad: str, image_size: tuple[int, int]) -> int:
    """FLOPs of the products of one image's forward pass; a multiply-add counts 2.

    Products with the zeros of padding are not counted, as XLA does not count them.
    """
    total = 3 * shape.root_width * _taps(image_size, ROOT_KERNEL, 2, pad)
    for unit in shape.each(image_size):
        before, after = math.prod(unit.size_in), math.prod(unit.size_out)
        total += unit.inputs * unit.hidden * before
        total += unit.hidden**2 * _taps(unit.size_in, UNIT_KERNEL, unit.stride, pad)
        total += unit.hidden * unit.outputs * after
        total += unit.projection * unit.inputs * unit.outputs * after
    return 2 * total


def _taps(size: tuple[int, int], kernel_size: int, stride: int, pad: str) -> int:
    """The number of pairs of an output and an input position that a convolution connects."""
    pads = padding(pad, size, kernel_size, stride)
    one = 1
    for side, (before, _) in zip(size, pads, strict=True):
        starts = range(-before, -(-side // stride) * stride - before, stride)
        one *= sum(min(start + kernel_size, side) - max(start, 0) for start in starts)
    return one


def activation_bytes(
    shape: ResNetShape, *, pre_activation: bool, image_size: tuple[int, int]
) -> int:
    """Bytes of one image in bfloat16 that root and units keep for their backward pass.

    They are the inputs of each norm and of the pooling, from which relus and convolutions' inputs
    follow without a product: a unit's input, and the outputs of its convolutions that norms take.
    """
    elements = shape.root_width * math.prod(halved(image_size))
    for unit in shape.each(image_size):
        before, after = math.prod(unit.size_in), math.prod(unit.size_out)
        elements += (unit.inputs + unit.hidden) * before + unit.hidden * after
        if not pre_activation:
            elements += (1 + unit.projection) * unit.outputs * after
    return 2 * elements


def unit_input_bytes(shape: ResNetShape, image_size: tuple[int, int]) -> int:
    """Bytes of one image in bfloat16 that enter the units: the least that a backward pass keeps."""
    return 2 * sum(unit.inputs * math.prod(unit.size_in) for unit in shape.each(image_size))
