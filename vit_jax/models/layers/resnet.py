"""A ResNet of bottleneck units without a head, from images to a feature map.

Its convolutions have standardised weights (arXiv 1903.10520) and no bias. The released code of BiT
(arXiv 1912.11370) divides by sqrt(variance + 1e-10), the code of the hybrids of arXiv 2010.11929 by
deviation + 1e-5, and the ports to torch by sqrt(variance + 1e-8).
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn import initializers

from vit_jax.core.axes import BATCH, CHANNELS, KERNEL, PATCH, STREAM, WIDTH, constrain
from vit_jax.core.schema.constraints import Constraint, multiple_rule
from vit_jax.core.schema.fields import ABOVE_0, ANY, COUNT, HIDDEN, IN_SHAPES, field
from vit_jax.models.layers.linear import Precision, affine, param
from vit_jax.models.layers.norm import GROUPS, GroupNorm
from vit_jax.models.layers.stack import StackSpec, UnitShape, add_stages, run_stages

EXPANSION = 4  # channels of a unit's output per channel of its 3 x 3 convolution
ROOT_KERNEL, POOL_KERNEL, UNIT_KERNEL = 7, 3, 3
ROOT_STRIDE = 4  # convolution and pooling together
ANY_SIZE = (32, 32)  # of images, where units are the same for all sizes
Padding = tuple[tuple[int, int], tuple[int, int]]  # before and after, for rows and for columns


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResNetSpec(StackSpec):
    """The fields of a ResNet; the defaults match the released BiTs."""

    # Norm and relu before each convolution, nothing after the sum (arXiv 1603.05027: BiT); or after
    # each, and a relu after the sum (the hybrids).
    pre_activation: ClassVar[bool] = True
    pad: ClassVar[str] = "fixed"  # a kind of `padding`
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
    group_norm_epsilon: float = field(1e-5, bounds=(ABOVE_0, 1), trained=HIDDEN, elsewhere=ANY)

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

    constraints: ClassVar[tuple[Constraint, ...]] = (
        multiple_rule("model.root_width", lambda _: GROUPS, f"is not of whole groups of {GROUPS}"),
    )

    def each_unit(self, image_size: tuple[int, int]) -> Iterator[UnitShape]:
        """The units, one after the other, for images of this size in pixels."""
        before, size = self.root_width, halved(halved(image_size))
        for stage, units in enumerate(self.units):
            hidden = self.root_width * 2**stage
            after = EXPANSION * hidden
            for i in range(units):
                stride = 2 if stage and not i else 1
                size_out = halved(size) if stride == 2 else size
                yield UnitShape(UNIT_KERNEL, stride, before, hidden, after, size, size_out)
                before, size = after, size_out

    def middle_elements(self, unit: UnitShape) -> int:
        """Elements of one image that are kept there: what a norm takes, and attention's weights."""
        return unit.hidden * math.prod(unit.size_out)

    def map_bytes(self, image_size: tuple[int, int]) -> int:
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
                elements += (2 - unit.adds) * unit.outputs * after
        return 2 * elements


def halved(size: tuple[int, int]) -> tuple[int, int]:
    """Size of a feature map after a stride of 2; odd sides are rounded up."""
    return -(-size[0] // 2), -(-size[1] // 2)


def padding(kind: str, size: tuple[int, ...], kernel_size: int, stride: int) -> Padding:
    """Padding around a feature map of this size, for an output of ceil(size / stride).

    "fixed": equal on both sides, whatever the size (BiT). "same": no more than is needed, an odd
    one after (TensorFlow's and JAX's SAME: the hybrids).
    """

    def pad_side(side: int) -> tuple[int, int]:
        if kind == "fixed":
            return (kernel_size - 1) // 2, kernel_size // 2
        total = max((-(-side // stride) - 1) * stride + kernel_size - side, 0)
        return total // 2, total - total // 2

    return pad_side(size[0]), pad_side(size[1])


def standardized(kernel: jax.Array, epsilon: float, added_to: str) -> jax.Array:
    """[k, k, I, O] -> the same, float32, with mean 0 and variance 1 for each of the O outputs.

    added_to: the divisor that gets `epsilon`, the "variance" or the standard "deviation".
    """
    inputs = (0, 1, 2)
    kernel = kernel - jnp.mean(kernel, axis=inputs, keepdims=True)
    variance = jnp.mean(jnp.square(kernel), axis=inputs, keepdims=True)
    if added_to == "variance":
        return kernel * jax.lax.rsqrt(variance + epsilon)
    # The gradient of a root at 0 is infinite; weights that are all equal have none.
    deviation = jnp.sqrt(jnp.maximum(variance, jnp.finfo(jnp.float32).tiny))
    return kernel / (deviation + epsilon)


class StdConv(nnx.Module):
    """k x k convolution with a LeCun-normal kernel [k, k, I, O], standardised at every use."""

    def __init__(
        self,
        kernel_size: int,
        channels: tuple[int, int],
        axes: tuple[str, str],
        spec: ResNetSpec,
        *,
        stride: int = 1,
        rngs: nnx.Rngs,
    ):
        shape = (kernel_size, kernel_size, *channels)
        names = (KERNEL, KERNEL, *axes)
        self.kernel = param(initializers.lecun_normal(), shape, names, rngs.params())
        self.kernel_size, self.stride, self.spec = kernel_size, stride, spec

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, H, W, I] -> [B, ceil(H / stride), ceil(W / stride), O]."""
        spec, precision = self.spec, self.spec.precision
        x = x.astype(precision.compute)
        kernel = standardized(self.kernel[...], spec.weight_epsilon, spec.weight_epsilon_of)
        if self.kernel_size == 1:
            x = x[:, :: self.stride, :: self.stride]
            return affine(x, kernel[0, 0], None, 1, precision)
        pad = padding(spec.pad, x.shape[1:3], self.kernel_size, self.stride)
        return convolve(x, kernel, self.stride, pad, precision)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def convolve(
    x: jax.Array, kernel: jax.Array, stride: int, pad: Padding, precision: Precision
) -> jax.Array:
    """[B, H, W, I], [k, k, I, O] -> [B, H', W', O].

    x and the result are in `precision.compute`, the kernel and its gradient in float32. It has a
    custom backward pass, whose sums for the kernel's gradient are returned in
    `precision.gradient` (as in `linear.affine`). Not for forward-mode differentiation.
    """
    return _convolve_forward(x, kernel, stride, pad, precision)[0]


def _convolve_plainly(x: jax.Array, kernel: jax.Array, stride: int, pad: Padding) -> jax.Array:
    layout = ("NHWC", "HWIO", "NHWC")
    strides = (stride, stride)
    return jax.lax.conv_general_dilated(x, kernel, strides, pad, dimension_numbers=layout)


def _convolve_forward(
    x: jax.Array, kernel: jax.Array, stride: int, pad: Padding, precision: Precision
) -> tuple[jax.Array, Any]:
    return _convolve_plainly(x, kernel.astype(precision.compute), stride, pad), (x, kernel)


def _convolve_backward(
    stride: int, pad: Padding, precision: Precision, saved: Any, dy: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, kernel = saved
    (dx,) = jax.linear_transpose(
        lambda x: _convolve_plainly(x, kernel.astype(precision.compute), stride, pad), x
    )(dy)
    # The images' channels become the batch axis: every weight's gradient is the sum of x * dy over
    # examples and positions, `stride` pixels apart. Trailing pixels the forward pass did not use
    # are cut off.
    sizes = zip(x.shape[1:3], dy.shape[1:3], kernel.shape[:2], pad, strict=True)
    behind = [(n - 1) * stride + k - side - before for side, n, k, (before, _) in sizes]
    d_kernel = jax.lax.conv_general_dilated(
        x,
        dy,
        window_strides=(1, 1),
        padding=[(before, b) for (before, _), b in zip(pad, behind, strict=True)],
        rhs_dilation=(stride, stride),
        dimension_numbers=("CHWN", "IHWO", "HWNC"),
        preferred_element_type=precision.gradient,
    )
    return dx, d_kernel.astype(kernel.dtype)


convolve.defvjp(_convolve_forward, _convolve_backward)


class Bottleneck(nnx.Module):
    """A bottleneck unit: [B, H, W, I] -> [B, H / stride, W / stride, O].

    Its shortcut is a 1 x 1 convolution unless the shapes of input and output are equal.
    """

    def __init__(self, shape: UnitShape, spec: ResNetSpec, *, rngs: nnx.Rngs):
        inputs, hidden, outputs, stride = shape.inputs, shape.hidden, shape.outputs, shape.stride
        conv: Any = functools.partial(StdConv, spec=spec, rngs=rngs)
        norm: Any = functools.partial(GroupNorm, spec=spec, rngs=rngs)
        self.conv1 = conv(1, (inputs, hidden), (WIDTH, CHANNELS))
        self.conv2 = conv(shape.kernel_size, (hidden, hidden), (WIDTH, CHANNELS), stride=stride)
        self.conv3 = conv(1, (hidden, outputs), (CHANNELS, WIDTH))
        if not shape.adds:
            self.projection = conv(1, (inputs, outputs), (STREAM, WIDTH), stride=stride)
        self.projects, self.pre_activation = not shape.adds, spec.pre_activation
        if spec.pre_activation:
            self.norm1 = norm(inputs, WIDTH)
            self.norm2 = norm(hidden, CHANNELS)
            self.norm3 = norm(hidden, CHANNELS)
            return
        self.norm1 = norm(hidden, CHANNELS)
        self.norm2 = norm(hidden, CHANNELS)
        # A unit starts as its shortcut alone, as in the released code.
        self.norm3 = norm(outputs, WIDTH, scale_init=initializers.zeros)
        if self.projects:
            self.projection_norm = norm(outputs, WIDTH)

    def __call__(self, x: jax.Array, key: Any = None, drop_rate: Any = None) -> jax.Array:
        """Applies the unit; `key` and `drop_rate`, which layers/stack.py passes, are not used."""
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
        y = jax.nn.relu(self._middle(y))
        return jax.nn.relu(shortcut + self.norm3(self.conv3(y)))

    def _middle(self, y: jax.Array) -> jax.Array:
        """[B, H, W, hidden] -> [B, H / stride, W / stride, hidden]; axial units have another."""
        return self.norm2(self.conv2(y))


class ResNet(nnx.Module):
    """A ResNet's root and stages."""

    def __init__(
        self,
        spec: ResNetSpec,
        *,
        make_unit: Callable[..., nnx.Module] = Bottleneck,
        image_size: tuple[int, int] = ANY_SIZE,
        rngs: nnx.Rngs,
    ):
        self.spec = spec
        self.root = Root(spec, rngs=rngs)
        add_stages(self, functools.partial(make_unit, spec=spec), spec, image_size, rngs=rngs)

    def __call__(
        self, images: jax.Array, layers: tuple[int, ...] = ()
    ) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        """[B, H, W, 3] -> ([B, h, w, C], feature maps after the units `layers`, from 0)."""
        return run_stages(self, self.root(images), layers=layers)


class Root(nnx.Module):
    """7 x 7 convolution, stride 2; norm and relu unless pre-activation; 3 x 3 max, stride 2."""

    def __init__(self, spec: Any, *, rngs: nnx.Rngs):
        channels, axes = (spec.channels, spec.root_width), (PATCH, WIDTH)
        self.conv = StdConv(ROOT_KERNEL, channels, axes, spec, stride=2, rngs=rngs)
        if not spec.pre_activation:
            self.norm = GroupNorm(spec.root_width, WIDTH, spec, rngs)
        self.spec = spec

    def __call__(self, images: jax.Array) -> jax.Array:
        """[B, H, W, 3] -> [B, ceil(H / 4), ceil(W / 4), width]."""
        x = self.conv(images)
        if not self.spec.pre_activation:
            x = jax.nn.relu(self.norm(x))
        # Padded with zeros: the released BiTs were trained so, and after a relu it changes nothing.
        rows, columns = padding(self.spec.pad, x.shape[1:3], POOL_KERNEL, 2)
        x = jnp.pad(x, ((0, 0), rows, columns, (0, 0)))
        x = nnx.max_pool(x, (POOL_KERNEL, POOL_KERNEL), strides=(2, 2), padding="VALID")
        return constrain(x, BATCH, None, None, STREAM)
