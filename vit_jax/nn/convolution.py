"""Convolutions with standardised weights (arXiv 1903.10520), without a bias.

The released code of BiT (arXiv 1912.11370) divides by sqrt(variance + 1e-10), that of the hybrids
of arXiv 2010.11929 by deviation + 1e-5; the ports to torch by sqrt(variance + 1e-8).
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

Padding = tuple[tuple[int, int], tuple[int, int]]  # before and behind, of rows and of columns


@dataclasses.dataclass(frozen=True)
class Standardization:
    """How the weights of one output are brought to mean 0 and variance 1.

    Attributes:
      epsilon: what the divisor is kept away from 0 by.
      eps_of: whether it is added to the "variance" or to the standard "deviation".
    """

    epsilon: float
    eps_of: str

    def __call__(self, kernel: jax.Array) -> jax.Array:
        """[k, k, I, O] -> [k, k, I, O], float32; each of the O outputs on its own."""
        inputs = (0, 1, 2)
        kernel = kernel - jnp.mean(kernel, axis=inputs, keepdims=True)
        variance = jnp.mean(jnp.square(kernel), axis=inputs, keepdims=True)
        if self.eps_of == "variance":
            return kernel * jax.lax.rsqrt(variance + self.epsilon)
        # The gradient of a root at 0 is infinite; weights that are all equal have none.
        deviation = jnp.sqrt(jnp.maximum(variance, jnp.finfo(jnp.float32).tiny))
        return kernel / (deviation + self.epsilon)


def padding(kind: str, size: tuple[int, int], kernel_size: int, stride: int) -> Padding:
    """Rows and columns around a feature map of this size, of which the output has ceil(size / s).

    "fixed": as many on both sides, whatever the size (BiT). "same": no more than is needed, an odd
    one behind (TensorFlow's and JAX's SAME: the hybrids).
    """

    def of(side: int) -> tuple[int, int]:
        if kind == "fixed":
            return (kernel_size - 1) // 2, kernel_size // 2
        total = max((-(-side // stride) - 1) * stride + kernel_size - side, 0)
        return total // 2, total - total // 2

    return of(size[0]), of(size[1])


class StdConv(nnx.Module):
    """k x k convolution, LeCun-normal kernel [k, k, I, O], standardised whenever it is used.

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

    x and the result are in `precision.compute`, the kernel and its gradient in float32. With a
    backward pass of its own, in which the kernel's gradient leaves its sums in `precision.gradient`
    (as `linear.product`). Not for forward-mode differentiation.
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
    # The images' channels take the batch's place: every weight is the sum of x * dy over examples
    # and places, `stride` pixels apart. What the forward pass left over behind is cut off.
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
