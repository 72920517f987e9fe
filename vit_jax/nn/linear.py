"""Dense layers: parameters with names for their axes, products in a chosen precision."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.nn import initializers

Initializer = Callable[..., jax.Array]


@dataclasses.dataclass(frozen=True)
class Precision:
    """The dtypes of a layer's computation; its parameters are always float32.

    Attributes:
      compute: products and activations.
      softmax: attention's logits, their softmax and its sums.
      gradient: the product that gives a kernel's gradient, and so the sum over devices of their
        parts of it; None: as `compute`. After that gradients are float32.
    """

    compute: Any
    softmax: Any
    gradient: Any | None


FLOAT32 = Precision(compute=jnp.float32, softmax=jnp.float32, gradient=None)


def times(x: jax.Array, factor: float | jax.Array) -> jax.Array:
    """x * factor in x's dtype; only the product is rounded to it, not the factor.

    A factor in bfloat16 would be up to 0.2 % off, for all values alike: 1 / 0.9 becomes 1 / 0.898.
    """
    if isinstance(factor, float) and float(np.asarray(factor, x.dtype)) == factor:
        return x * factor
    return (x.astype(jnp.float32) * factor).astype(x.dtype)


def param(init: Initializer, shape: tuple[int, ...], axes: tuple[str, ...], key: Any) -> nnx.Param:
    """A float32 parameter with the logical names of its axes as metadata `axes`."""
    assert len(shape) == len(axes), (shape, axes)
    return nnx.Param(init(key, shape, jnp.float32), axes=axes)


class Linear(nnx.Module):
    """y = x @ kernel + bias over the last axes of x, with a float32 kernel.

    Args:
      in_shape, out_shape: the axes contracted and produced, such as (H, K) -> (D,).
      in_axes, out_axes: their logical names.
      kernel_init: called with (key, (*in_shape, *out_shape), dtype).
      bias: whether there is one.
      precision: for the product and its gradients; the result is in its `compute`.
    """

    def __init__(
        self,
        in_shape: tuple[int, ...],
        out_shape: tuple[int, ...],
        in_axes: tuple[str, ...],
        out_axes: tuple[str, ...],
        *,
        kernel_init: Initializer,
        bias_init: Initializer = initializers.zeros,
        bias: bool = True,
        precision: Precision,
        rngs: nnx.Rngs,
    ):
        shape, axes = (*in_shape, *out_shape), (*in_axes, *out_axes)
        self.kernel = param(kernel_init, shape, axes, rngs.params())
        self.bias = param(bias_init, out_shape, out_axes, rngs.params()) if bias else None
        self.contracted = len(in_shape)
        self.precision = precision

    def __call__(self, x: jax.Array) -> jax.Array:
        """[..., *in_shape] -> [..., *out_shape]."""
        x = x.astype(self.precision.compute)
        y = product(x, self.kernel[...], self.contracted, self.precision)
        return y if self.bias is None else y + self.bias[...].astype(y.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def product(x: jax.Array, kernel: jax.Array, contracted: int, precision: Precision) -> jax.Array:
    """[..., *in], [*in, *out] -> [..., *out]; `in` has `contracted` axes.

    x and the result are in `precision.compute`, the kernel and its gradient in float32.

    The same as jnp.tensordot, but with a custom backward pass: JAX's rule computes the kernel's
    gradient as a product in the other order and a transposition, for which XLA on a CPU does not
    use its fast kernels (docs/benchmarks.md). Not for forward-mode differentiation.
    """
    return _forward(x, kernel, contracted, precision)[0]


def _forward(
    x: jax.Array, kernel: jax.Array, contracted: int, precision: Precision
) -> tuple[jax.Array, Any]:
    return jnp.tensordot(x, kernel.astype(precision.compute), axes=contracted), (x, kernel)


def _backward(
    contracted: int, precision: Precision, saved: Any, dy: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, kernel = saved
    num_out = kernel.ndim - contracted
    out_axes = (range(dy.ndim - num_out, dy.ndim), range(contracted, kernel.ndim))
    dx = jax.lax.dot_general(dy, kernel.astype(precision.compute), (out_axes, ((), ())))
    # Contracted over one axis: XLA would merge several into one by copying.
    rows = lambda a, kept: a.reshape(-1, *a.shape[a.ndim - kept :])
    d_kernel = jnp.tensordot(
        rows(x, contracted),
        rows(dy, num_out),
        axes=(0, 0),
        preferred_element_type=precision.gradient,
    )
    return dx, d_kernel.astype(kernel.dtype)


product.defvjp(_forward, _backward)
