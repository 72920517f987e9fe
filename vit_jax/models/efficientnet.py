"""EfficientNets (arXiv 1905.11946), the students and teachers of Noisy Student (1911.04252).

First their names, then the layers: inverted bottlenecks (arXiv 1801.04381) with
squeeze-and-excitation (arXiv 1709.01507). Kernels start normal with a variance of 2 / fan-out, as
in the released code.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn import initializers

from vit_jax.core.axes import BATCH, CHANNELS, KERNEL, PATCH, SQUEEZED, STREAM, WIDTH, constrain
from vit_jax.core.schema.fields import ABOVE_0, ANY, HIDDEN, IN_SHAPES, field
from vit_jax.models.convnet import ConvNet, ConvNetSpec
from vit_jax.models.family import Family
from vit_jax.models.layers.linear import Initializer, Linear, param
from vit_jax.models.layers.norm import BatchNorm
from vit_jax.models.layers.regularization import Dropout, drop_branch, dropout_key
from vit_jax.models.layers.resnet import ANY_SIZE, Padding, convolve, halved, padding
from vit_jax.models.layers.stack import StackSpec, UnitShape, add_stages, run_stages


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

DIVISOR = 8  # of all numbers of channels
LEAST_KEPT = 0.9  # rounding takes no more than a tenth of the channels away
SQUEEZE = 4  # channels of a unit's input per channel between squeeze and excitation
ROOT_KERNEL = 3


class StageSizes(NamedTuple):
    """A stage of B0 (table 1)."""

    units: int
    kernel_size: int  # of its depthwise convolutions
    stride: int  # of its first unit
    expansion: int  # channels inside a unit per channel of its input
    channels: int  # behind each unit


STAGES = (
    StageSizes(1, 3, 1, 1, 16),
    StageSizes(2, 3, 2, 6, 24),
    StageSizes(2, 5, 2, 6, 40),
    StageSizes(3, 3, 2, 6, 80),
    StageSizes(3, 5, 1, 6, 112),
    StageSizes(4, 5, 2, 6, 192),
    StageSizes(1, 3, 1, 6, 320),
)
ROOT_CHANNELS, FEATURES = 32, 1280  # before and behind the stages
# A field's word -> a kind of `padding` (models/layers/resnet.py).
PADDINGS = {"same": "same", "symmetric": "fixed"}


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
        bounds=(ABOVE_0, 1),
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

    map_stride: ClassVar[int] = 32  # pixels; the root and four of the stages halve the map

    @property
    def pad(self) -> str:
        """The kind of `padding` (models/layers/resnet.py)."""
        return PADDINGS[self.padding]

    @property
    def units(self) -> tuple[int, ...]:
        """Units of each stage."""
        return tuple(math.ceil(stage.units * self.depth_coefficient) for stage in STAGES)

    @property
    def stage_channels(self) -> tuple[int, ...]:
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
        size, before = halved(image_size), self.stage_channels[0]
        for stage, units, after in zip(STAGES, self.units, self.stage_channels[1:], strict=True):
            for i in range(units):
                stride = 1 if i else stage.stride
                size_out = halved(size) if stride == 2 else size
                hidden = stage.expansion * before
                yield UnitShape(stage.kernel_size, stride, before, hidden, after, size, size_out)
                before, size = after, size_out

    def middle_elements(self, unit: UnitShape) -> int:
        """Elements of one image behind a unit's depthwise convolution."""
        return unit.hidden * math.prod(unit.size_out)

    def map_bytes(self, image_size: tuple[int, int]) -> int:
        """Bytes of one image in bfloat16 that are kept for the backward pass.

        They are the inputs of units and of each norm, from which all else follows without a
        product.
        """
        elements = self.stage_channels[0] * math.prod(halved(image_size))
        size = halved(image_size)
        for unit in self.each_unit(image_size):
            size = unit.size_out
            elements += (unit.inputs + expands(unit) * unit.hidden) * math.prod(unit.size_in)
            elements += (unit.hidden + unit.outputs) * math.prod(size)
        return 2 * (elements + (self.stage_channels[-1] + self.map_channels) * math.prod(size))


@dataclasses.dataclass(frozen=True, kw_only=True)
class EfficientNetSpec(ConvNetSpec, MBConvSpec):
    """The fields of an EfficientNet."""

    dropout: float = field(
        0.2,
        "rate [0]; of an EfficientNet's features alone, by its name [0.2 to 0.5]",
        bounds=(0, 1),
    )
    stochastic_depth: float = field(
        0.2,
        "rate at the last block, rising linearly from 0 at the first; of an EfficientNet's n units "
        "the last has (n - 1) / n of it, as published [0; of an EfficientNet 0.2]",
        bounds=(0, 1),
    )


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
        wide = (spec.stage_channels, spec.map_channels) == (tuple(channels), map_channels)
        return wide, spec.units == tuple(units)

    for size in SIZES:
        name = f"EfficientNet-{size}"
        if all(fits(EfficientNetSpec(**(named(name) or {})))):
            return name
    tried = [hundredths / 100 for hundredths in HUNDREDTHS]
    width = next((x for x in tried if fits(MBConvSpec(width_coefficient=x))[0]), None)
    depth = next((x for x in tried if fits(MBConvSpec(depth_coefficient=x))[1]), None)
    return f"EfficientNet-{width:g}x{depth:g}" if width and depth else None


class EfficientNet(ConvNet):
    """An EfficientNet: root, seven stages, a 1 x 1 convolution, the mean over positions, a head."""

    def _make_body(self, image_size: tuple[int, int], rngs: nnx.Rngs) -> None:
        spec = self.spec
        self.root = Root(spec, rngs=rngs)
        add_stages(
            self,
            functools.partial(MBConv, spec=spec),
            spec,
            ANY_SIZE,
            drop_rate=lambda unit: spec.stochastic_depth * unit / spec.depth,
            rngs=rngs,
        )
        self.top = Top(spec, rngs=rngs)
        self.dropout = Dropout(spec.dropout)

    def _head_init(self, num_classes: int) -> Initializer:
        """Uniform within 1 / sqrt(classes) on both sides of 0."""
        bound = 1 / math.sqrt(num_classes)
        return lambda *arguments: initializers.uniform(2 * bound)(*arguments) - bound

    def __call__(self, images: jax.Array, train: bool = False, rngs: Any = None) -> jax.Array:
        """[B, H, W, 3] float32, normalised -> logits [B, C] float32; headless: features [B, D].

        train, rngs: as of a ViT; norms then take their moments from the batch, and their running
        statistics have gradients of their own.
        """
        draws = self.spec.dropout or self.spec.stochastic_depth
        keys = jax.random.split(dropout_key(rngs)) if train and draws else (None, None)
        x = self.pool(self.top(self._run(images, keys[0], train)[0], train))
        return self.classify(self.dropout(x, keys[1]))

    def feature_map(self, images: jax.Array) -> jax.Array:
        return self.top(self._run(images)[0], False)

    def unit_maps(self, images: jax.Array, layers: tuple[int, ...]) -> tuple[jax.Array, ...]:
        return self._run(images, layers=layers)[1]

    def _run(
        self, images: jax.Array, key: Any = None, train: bool = False, layers: tuple[int, ...] = ()
    ) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        """[B, H, W, 3] -> ([B, h, w, C], feature maps after the units `layers`, from 0)."""
        self.spec.check_images(images, self.preprocess.image_size)
        return run_stages(
            self, self.root(images, train), key, layers, lambda unit, *inputs: unit(*inputs, train)
        )


class Top(nnx.Module):
    """1 x 1 convolution, norm and swish."""

    def __init__(self, spec: EfficientNetSpec, *, rngs: nnx.Rngs):
        channels = spec.stage_channels[-1], spec.map_channels
        self.conv = pointwise(channels, (STREAM, WIDTH), spec, rngs)
        self.norm = BatchNorm(spec.map_channels, WIDTH, spec)

    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """[B, h, w, C] -> [B, h, w, D]."""
        x = jax.nn.silu(self.norm(self.conv(x), train))
        return constrain(x, BATCH, None, None, STREAM)


def expands(unit: UnitShape) -> bool:
    """Returns whether a 1 x 1 convolution comes before the depthwise one."""
    return unit.hidden != unit.inputs


def squeezed(unit: UnitShape) -> int:
    """Channels between squeeze and excitation: a quarter of the unit's input."""
    return max(1, unit.inputs // SQUEEZE)


def fan_out(outputs: int) -> Initializer:
    """A normal distribution of variance 2 / outputs."""
    return initializers.normal(math.sqrt(2 / outputs))


def pointwise(
    channels: tuple[int, int],
    axes: tuple[str, str],
    spec: MBConvSpec,
    rngs: nnx.Rngs,
    *,
    bias: bool = False,
) -> Linear:
    """1 x 1 convolution: [..., I] -> [..., O]; `axes` are the names of both."""
    return Linear(
        channels[:1],
        channels[1:],
        axes[:1],
        axes[1:],
        kernel_init=fan_out(channels[1]),
        bias=bias,
        precision=spec.precision,
        rngs=rngs,
    )


class Root(nnx.Module):
    """3 x 3 convolution, stride 2; norm and swish."""

    def __init__(self, spec: EfficientNetSpec, *, rngs: nnx.Rngs):
        width = spec.stage_channels[0]
        shape = (ROOT_KERNEL, ROOT_KERNEL, spec.channels, width)
        init, names = fan_out(ROOT_KERNEL**2 * width), (KERNEL, KERNEL, PATCH, WIDTH)
        self.conv = nnx.Dict(kernel=param(init, shape, names, rngs.params()))
        self.norm = BatchNorm(width, WIDTH, spec)
        self.spec = spec

    def __call__(self, images: jax.Array, train: bool) -> jax.Array:
        """[B, H, W, 3] -> [B, ceil(H / 2), ceil(W / 2), C]."""
        x = jax.nn.silu(self.norm(self.convolved(images), train))
        return constrain(x, BATCH, None, None, STREAM)

    def convolved(self, images: jax.Array) -> jax.Array:
        """[B, H, W, 3] -> [B, ceil(H / 2), ceil(W / 2), C], before the norm."""
        precision = self.spec.precision
        pad = padding(self.spec.pad, images.shape[1:3], ROOT_KERNEL, 2)
        images = images.astype(precision.compute)
        return convolve(images, self.conv["kernel"][...], 2, pad, precision)


class Depthwise(nnx.Module):
    """k x k convolution of each channel by itself, with a kernel [k, k, C]."""

    def __init__(
        self, kernel_size: int, channels: int, stride: int, spec: MBConvSpec, *, rngs: nnx.Rngs
    ):
        shape, names = (kernel_size, kernel_size, channels), (KERNEL, KERNEL, CHANNELS)
        self.kernel = param(fan_out(kernel_size**2), shape, names, rngs.params())
        self.kernel_size, self.stride, self.spec = kernel_size, stride, spec

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, H, W, C] -> [B, ceil(H / stride), ceil(W / stride), C]."""
        pad = padding(self.spec.pad, x.shape[1:3], self.kernel_size, self.stride)
        return convolve_each(x, self.kernel[...], self.stride, pad)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def convolve_each(x: jax.Array, kernel: jax.Array, stride: int, pad: Padding) -> jax.Array:
    """[B, H, W, C], [k, k, C] -> [B, H', W', C], in x's dtype; the kernel is float32.

    It has a custom backward pass: of JAX's own, XLA gets the kernel's gradient wrong where a mesh
    divides examples and channels (seen with jax 0.10.2 on CPUs). Not for forward-mode
    differentiation.
    """
    return _convolve_each_plainly(x, kernel, stride, pad)


def _convolve_each_plainly(x: jax.Array, kernel: jax.Array, stride: int, pad: Padding) -> jax.Array:
    return jax.lax.conv_general_dilated(
        x,
        kernel[:, :, None].astype(x.dtype),
        (stride, stride),
        pad,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=x.shape[-1],
    )


def _convolve_each_backward(
    stride: int, pad: Padding, saved: Any, dy: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, kernel = saved
    (dx,) = jax.linear_transpose(lambda x: _convolve_each_plainly(x, kernel, stride, pad), x)(dy)
    rows, columns = (range(size) for size in kernel.shape[:2])
    height, width = ((n - 1) * stride + 1 for n in dy.shape[1:3])
    wide, dy = jnp.pad(x, ((0, 0), *pad, (0, 0))).astype(jnp.float32), dy.astype(jnp.float32)
    # What an entry of the kernel multiplied, `stride` pixels apart.

    def weight_gradient(i: int, j: int) -> jax.Array:
        window = wide[:, i : i + height : stride, j : j + width : stride]
        return jnp.sum(window * dy, (0, 1, 2))

    return dx, jnp.array([[weight_gradient(i, j) for j in columns] for i in rows])


convolve_each.defvjp(
    lambda x, kernel, stride, pad: (convolve_each(x, kernel, stride, pad), (x, kernel)),
    _convolve_each_backward,
)


class MBConv(nnx.Module):
    """A unit: [B, H, W, I] -> [B, H / stride, W / stride, O].

    It expands, convolves each channel, multiplies each channel by a factor that all of the map
    decide on, and projects.
    """

    def __init__(self, unit: UnitShape, spec: MBConvSpec, *, rngs: nnx.Rngs):
        conv: Any = functools.partial(pointwise, spec=spec, rngs=rngs)
        norm: Any = functools.partial(BatchNorm, spec=spec)
        if expands(unit):
            self.expand = conv((unit.inputs, unit.hidden), (WIDTH, CHANNELS))
            self.norm1 = norm(unit.hidden, CHANNELS)
        self.depthwise = Depthwise(unit.kernel_size, unit.hidden, unit.stride, spec, rngs=rngs)
        self.norm2 = norm(unit.hidden, CHANNELS)
        self.squeeze = conv((unit.hidden, squeezed(unit)), (CHANNELS, SQUEEZED), bias=True)
        self.excite = conv((squeezed(unit), unit.hidden), (SQUEEZED, CHANNELS), bias=True)
        self.project = conv((unit.hidden, unit.outputs), (CHANNELS, WIDTH))
        self.norm3 = norm(unit.outputs, WIDTH)
        self.expands, self.adds = expands(unit), unit.adds

    def __call__(
        self, x: jax.Array, key: Any = None, drop_rate: Any = None, train: bool = False
    ) -> jax.Array:
        """Applies the unit; stochastic depth drops all but the sum's first term."""
        y = jax.nn.silu(self.norm1(self.expand(x), train)) if self.expands else x
        y = jax.nn.silu(self.norm2(self.depthwise(y), train))
        mean = jnp.mean(y, axis=(1, 2), dtype=jnp.float32)
        factors = jax.nn.sigmoid(self.excite(jax.nn.silu(self.squeeze(mean))))
        y = self.norm3(self.project(y * factors[:, None, None]), train)
        if self.adds:
            y = x + drop_branch(y, drop_rate, key)
        return constrain(y, BATCH, None, None, STREAM)


FAMILY = Family(
    kind="An EfficientNet",
    form=f"EfficientNet-<{'|'.join(SIZES)}|width x depth coefficients, as 1.1x1.2>",
    published=tuple(f"EfficientNet-{size}" for size in SIZES),
    spec=EfficientNetSpec,
    named=named,
    module=EfficientNet,
)
