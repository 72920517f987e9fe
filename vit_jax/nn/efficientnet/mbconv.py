"""Inverted bottlenecks (arXiv 1801.04381) with squeeze-and-excitation (arXiv 1709.01507).

Kernels start normal with a variance of 2 / fan-out, as in the released code of arXiv 1905.11946.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn import initializers

from vit_jax.core.axes import BATCH, CHANNELS, KERNEL, PATCH, SQUEEZED, STREAM, WIDTH, constrain
from vit_jax.nn.efficientnet.batch_norm import BatchNorm
from vit_jax.nn.efficientnet.spec import ROOT_KERNEL, MBConvSpec, UnitShape
from vit_jax.nn.linear import Initializer, Linear, param
from vit_jax.nn.regularization import drop_branch
from vit_jax.nn.resnet import convolve
from vit_jax.nn.resnet_spec import Padding, padding


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

    def __init__(self, spec: MBConvSpec, *, rngs: nnx.Rngs):
        width = spec.channels[0]
        self.conv = Conv(width, spec, rngs=rngs)
        self.norm = BatchNorm(width, WIDTH, spec)

    def __call__(self, images: jax.Array, train: bool) -> jax.Array:
        """[B, H, W, 3] -> [B, ceil(H / 2), ceil(W / 2), C]."""
        x = jax.nn.silu(self.norm(self.conv(images), train))
        return constrain(x, BATCH, None, None, STREAM)


class Conv(nnx.Module):
    """The root's convolution of the image, with a kernel [3, 3, 3, C]."""

    def __init__(self, width: int, spec: MBConvSpec, *, rngs: nnx.Rngs):
        shape, names = (ROOT_KERNEL, ROOT_KERNEL, 3, width), (KERNEL, KERNEL, PATCH, WIDTH)
        init = fan_out(ROOT_KERNEL**2 * width)
        self.kernel = param(init, shape, names, rngs.params())
        self.spec = spec

    def __call__(self, images: jax.Array) -> jax.Array:
        """[B, H, W, 3] -> [B, ceil(H / 2), ceil(W / 2), C]."""
        precision = self.spec.precision
        pad = padding(self.spec.pad, (images.shape[1], images.shape[2]), ROOT_KERNEL, 2)
        return convolve(images.astype(precision.compute), self.kernel[...], 2, pad, precision)


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
        pad = padding(self.spec.pad, (x.shape[1], x.shape[2]), self.kernel_size, self.stride)
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
    of_x = lambda x: _convolve_each_plainly(x, kernel, stride, pad)
    (dx,) = jax.linear_transpose(of_x, x)(dy)
    rows, columns = (range(size) for size in kernel.shape[:2])
    height, width = ((n - 1) * stride + 1 for n in dy.shape[1:3])
    wide, dy = jnp.pad(x, ((0, 0), *pad, (0, 0))).astype(jnp.float32), dy.astype(jnp.float32)
    # What an entry of the kernel multiplied, `stride` pixels apart.
    of = lambda i, j: wide[:, i : i + height : stride, j : j + width : stride]
    sums = [[jnp.sum(of(i, j) * dy, (0, 1, 2)) for j in columns] for i in rows]
    return dx, jnp.array(sums)


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
        if unit.expands:
            self.expand = conv((unit.inputs, unit.hidden), (WIDTH, CHANNELS))
            self.norm1 = norm(unit.hidden, CHANNELS)
        self.depthwise = Depthwise(unit.kernel_size, unit.hidden, unit.stride, spec, rngs=rngs)
        self.norm2 = norm(unit.hidden, CHANNELS)
        self.squeeze = conv((unit.hidden, unit.squeezed), (CHANNELS, SQUEEZED), bias=True)
        self.excite = conv((unit.squeezed, unit.hidden), (SQUEEZED, CHANNELS), bias=True)
        self.project = conv((unit.hidden, unit.outputs), (CHANNELS, WIDTH))
        self.norm3 = norm(unit.outputs, WIDTH)
        self.expands, self.adds = unit.expands, unit.adds

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
