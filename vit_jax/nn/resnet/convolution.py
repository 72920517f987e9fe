"""Convolutions with standardised weights (arXiv 1903.10520), without a bias.

The released code of BiT (arXiv 1912.11370) divides by sqrt(variance + 1e-10), the code of the
hybrids of arXiv 2010.11929 by deviation + 1e-5, and the ports to torch by sqrt(variance + 1e-8).
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn import initializers

from vit_jax.core.axes import KERNEL
from vit_jax.nn.linear import Precision, param, product

Padding = tuple[tuple[int, int], tuple[int, int]]  # before and after, for rows and for columns


@dataclasses.dataclass(frozen=True)
class Standardization:
    """Standardisation of the weights of each output channel to mean 0 and variance 1.

    Attributes:
      epsilon: keeps the divisor away from 0.
      eps_of: whether it is added to the "variance" or to the standard "deviation".
    """

    epsilon: float
    eps_of: str

    def __call__(self, kernel: jax.Array) -> jax.Array:
        """[k, k, I, O] -> [k, k, I, O], float32; each of the O outputs separately."""
        inputs = (0, 1, 2)
        kernel = kernel - jnp.mean(kernel, axis=inputs, keepdims=True)
        variance = jnp.mean(jnp.square(kernel), axis=inputs, keepdims=True)
        if self.eps_of == "variance":
            return kernel * jax.lax.rsqrt(variance + self.epsilon)
        # The gradient of a root at 0 is infinite; weights that are all equal have none.
        deviation = jnp.sqrt(jnp.maximum(variance, jnp.finfo(jnp.float32).tiny))
        return kernel / (deviation + self.epsilon)


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


class StdConv(nnx.Module):
    """k x k convolution with a LeCun-normal kernel [k, k, I, O], standardised at every use.

    Args:
      kernel_size: k, in pixels.
      channels: (I, O).
      axes: their logical names.
      stride: pixels from one output to the next.
      pad: a kind of `padding`.
    """

    def __init__(
        self,
        kernel_size: int,
        channels: tuple[int, int],
        axes: tuple[str, str],
        *,
        stride: int = 1,
        pad: str,
        standardize: Standardization,
        precision: Precision,
        rngs: nnx.Rngs,
    ):
        shape = (kernel_size, kernel_size, *channels)
        names = (KERNEL, KERNEL, *axes)
        self.kernel = param(initializers.lecun_normal(), shape, names, rngs.params())
        self.kernel_size, self.stride, self.pad = kernel_size, stride, pad
        self.standardize, self.precision = standardize, precision

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, H, W, I] -> [B, ceil(H / stride), ceil(W / stride), O]."""
        x = x.astype(self.precision.compute)
        kernel = self.standardize(self.kernel[...])
        if self.kernel_size == 1:
            x = x[:, :: self.stride, :: self.stride]
            return product(x, kernel[0, 0], 1, self.precision)
        pad = padding(self.pad, (x.shape[1], x.shape[2]), self.kernel_size, self.stride)
        return convolve(x, kernel, self.stride, pad, self.precision)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def convolve(
    x: jax.Array, kernel: jax.Array, stride: int, pad: Padding, precision: Precision
) -> jax.Array:
    """[B, H, W, I], [k, k, I, O] -> [B, H', W', O].

    x and the result are in `precision.compute`, the kernel and its gradient in float32. It has a
    custom backward pass, whose sums for the kernel's gradient are returned in
    `precision.gradient` (as in `linear.product`). Not for forward-mode differentiation.
    """
    return _forward(x, kernel, stride, pad, precision)[0]


def _plain(x: jax.Array, kernel: jax.Array, stride: int, pad: Padding) -> jax.Array:
    layout = ("NHWC", "HWIO", "NHWC")
    strides = (stride, stride)
    return jax.lax.conv_general_dilated(x, kernel, strides, pad, dimension_numbers=layout)


def _forward(
    x: jax.Array, kernel: jax.Array, stride: int, pad: Padding, precision: Precision
) -> tuple[jax.Array, Any]:
    return _plain(x, kernel.astype(precision.compute), stride, pad), (x, kernel)


def _backward(
    stride: int, pad: Padding, precision: Precision, saved: Any, dy: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, kernel = saved
    of_x = lambda x: _plain(x, kernel.astype(precision.compute), stride, pad)
    (dx,) = jax.linear_transpose(of_x, x)(dy)
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


convolve.defvjp(_forward, _backward)
