"""Dense layers: parameters with names for their axes, products in a chosen precision."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.nn import initializers

from vit_jax.core.axes import LAYERS, QKV, RANK, target
from vit_jax.core.schema.fields import field
from vit_jax.models.layers import faster

Initializer = Callable[..., jax.Array]
DTYPES = ("float32", "bfloat16")


@dataclasses.dataclass(frozen=True)
class Precision:
    """The dtypes of a layer's computation; its parameters are always float32."""

    compute: Any  # products and activations
    # Attention's logits and its weights before they multiply the values; their sums are float32.
    softmax: Any
    # The product that gives a kernel's gradient, and so the sum over devices of their parts of it;
    # None: as `compute`. After that gradients are float32.
    gradient: Any | None

    @property
    def kernel_gradient(self) -> Any:
        """The dtype that a kernel's gradient is computed in."""
        return self.compute if self.gradient is None else self.gradient


FLOAT32 = Precision(compute=jnp.float32, softmax=jnp.float32, gradient=None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Numerics:
    """The dtypes that layers compute in; parameters are float32."""

    dtype: str = field(
        "float32",
        "of the computation: `float32` [this] or `bfloat16`; parameters are float32",
        choices=DTYPES,
    )
    gradient_dtype: str | None = field(
        None,
        "in what kernels' gradients are summed over devices: `float32` or `bfloat16`, which sends "
        "half as much [what they are computed in: `dtype` in the blocks, float32 in the head]; "
        "microbatches (`optim.grad_accum_steps`) are always added in float32",
        choices=DTYPES,
    )

    @property
    def precision(self) -> Precision:
        """The dtypes of layers; a softmax computes in float32."""
        gradient = self.gradient_dtype and jnp.dtype(self.gradient_dtype)
        return Precision(jnp.dtype(self.dtype), jnp.dtype("float32"), gradient)


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

    `add_adapter` adds the product of two narrow matrices to the kernel, without computing it.

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
        self.kernel.set_metadata(compute=precision.compute, gradient=precision.kernel_gradient)
        self.bias = param(bias_init, out_shape, out_axes, rngs.params()) if bias else None
        self.contracted = len(in_shape)
        self.precision = precision
        self.product: Callable[..., jax.Array] = Linear._plain if bias else Linear._without_bias
        self.kernel_scale: Any = None  # of a kernel of int8, [*out]
        self.lora_a: Any = None
        self.lora_b: Any = None
        self.adapter_scale = 1.0

    def __call__(self, x: jax.Array) -> jax.Array:
        """[..., *in_shape] -> [..., *out_shape]."""
        return self.product(self, x.astype(self.precision.compute))

    def _plain(self, x: jax.Array) -> jax.Array:
        assert self.bias is not None
        return affine(x, self.kernel[...], self.bias[...], self.contracted, self.precision)

    def _without_bias(self, x: jax.Array) -> jax.Array:
        return affine(x, self.kernel[...], None, self.contracted, self.precision)

    @property
    def has_projections(self) -> bool:
        """Returns whether the kernel is several projections side by side, [*in, n, H, K]."""
        return self.kernel.get_metadata()["axes"][-3:-2] == (QKV,)

    def add_adapter(self, rank: int, scale: float, key: Any) -> None:
        """Adds scale * A B to the kernel (arXiv 2106.09685, section 4.1): A [*in, R], B [R, *out].

        Projections side by side have one each: A [*in, n, R], B [n, R, H, K]. A is random as in the
        authors' code, uniform within 1 / sqrt(inputs), and B is zero: at first nothing changes. A
        stack's kernels [L, ...] have adapters [L, ...].
        """
        shape, names = self.kernel.shape, self.kernel.get_metadata()["axes"]
        layer = int(names[0] == LAYERS)
        inner = layer + self.contracted
        outer = inner + int(self.has_projections)
        bound = math.prod(shape[layer:inner]) ** -0.5
        uniform = functools.partial(jax.random.uniform, minval=-bound, maxval=bound)
        a_shape, a_names = ((*kernel[:outer], r) for kernel, r in ((shape, rank), (names, RANK)))
        b_shape, b_names = (
            (*kernel[:layer], *kernel[inner:outer], r, *kernel[outer:])
            for kernel, r in ((shape, rank), (names, RANK))
        )
        self.lora_a = nnx.data(param(uniform, a_shape, a_names, key))
        self.lora_b = nnx.data(param(initializers.zeros, b_shape, b_names, key))
        self.adapter_scale = scale
        self.product = Linear._adapted

    def quantise(self) -> None:
        """Replaces the kernel by the nearest multiples of a scale for each output, in int8.

        The scale, so that the output's largest weight is 127 of them, is beside it. For inference.
        """
        assert self.lora_a is None  # loaded models have merged ones
        kernel, metadata = self.kernel[...], self.kernel.get_metadata()
        layer = int(metadata["axes"][0] == LAYERS)
        inputs = tuple(range(layer, layer + self.contracted))
        scale = jnp.max(jnp.abs(kernel), inputs, keepdims=True) / 127
        scale = jnp.where(scale > 0, scale, 1.0)  # of an output without weights
        names = tuple(name for i, name in enumerate(metadata["axes"]) if i not in inputs)
        self.kernel = nnx.Param(jnp.rint(kernel / scale).astype(jnp.int8), **metadata)
        self.product = Linear._quantised
        self.kernel_scale = nnx.data(nnx.Param(jnp.squeeze(scale, inputs), axes=names))

    def _quantised(self, x: jax.Array) -> jax.Array:
        """The product is scaled, not the kernel: it has fewer numbers, and the same result."""
        y = jnp.tensordot(x, self.kernel[...].astype(x.dtype), axes=self.contracted)
        y = times(y, self.kernel_scale[...])
        return y if self.bias is None else _add(y, self.bias[...])

    def _adapted(self, x: jax.Array) -> jax.Array:
        """The kernel's product and the adapter's."""
        y = self._without_bias(x) if self.bias is None else self._plain(x)
        a, b = self.lora_a[...], self.lora_b[...]
        x = times(affine(x, a, None, self.contracted, self.precision), self.adapter_scale)
        if self.has_projections:
            return y + jnp.einsum("...nr,nrhk->...nhk", x, b.astype(x.dtype))
        return y + affine(x, b, None, 1, self.precision)


def quantise(model: nnx.Module) -> nnx.Module:
    """The model, whose dense layers now have kernels of int8; it can no longer be trained.

    A quarter of the memory and of the files, for inference. Weights alone are quantised: symmetric,
    one scale for each output (arXiv 2106.08295, section 2.2). Activations, norms, biases, position
    embeddings, the patches' projection and convolutions stay as they are, unless these are dense
    layers, of one pixel.
    """
    for _, module in nnx.iter_graph(model):
        if isinstance(module, Linear):
            module.quantise()
    return model


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def affine(
    x: jax.Array, kernel: jax.Array, bias: jax.Array | None, contracted: int, precision: Precision
) -> jax.Array:
    """[..., *in], [*in, *out], [*out] -> [..., *out]; `in` has `contracted` axes.

    x and the result are in `precision.compute`, the parameters and their gradients in float32.

    The same as jnp.tensordot and a sum, but with a custom backward pass: JAX's rule computes the
    kernel's gradient as a product in the other order and a transposition, for which XLA on a CPU
    does not use its fast kernels (docs/benchmarks.md). Not for forward-mode differentiation.
    """
    return _forward(x, kernel, bias, contracted, precision)[0]


def _forward(
    x: jax.Array, kernel: jax.Array, bias: jax.Array | None, contracted: int, precision: Precision
) -> tuple[jax.Array, Any]:
    y = jnp.tensordot(x, kernel.astype(precision.compute), axes=contracted)
    return y if bias is None else faster.replacing("bias", _add)(y, bias), (x, kernel, bias)


def _add(y: jax.Array, bias: jax.Array) -> jax.Array:
    return y + bias.astype(y.dtype)


def _backward(
    contracted: int, precision: Precision, saved: Any, dy: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    x, kernel, bias = saved
    num_out = kernel.ndim - contracted
    out_axes = (range(dy.ndim - num_out, dy.ndim), range(contracted, kernel.ndim))
    dx = jax.lax.dot_general(dy, kernel.astype(precision.compute), (out_axes, ((), ())))
    d_bias = None if bias is None else faster.replacing("sum_of_rows", sum_of_rows)(dy, num_out)
    batch_axes = tuple(range(x.ndim - contracted))
    if x.dtype != jnp.bfloat16 or target().platform != "cpu":
        # Contracted over one axis: XLA would merge several into one by copying. On a CPU its fast
        # products of bfloat16 need that copy (benchmarks/xla_cpu_bfloat16.py).
        x = x.reshape(-1, *x.shape[x.ndim - contracted :])
        dy = dy.reshape(-1, *dy.shape[dy.ndim - num_out :])
        batch_axes = (0,)
    d_kernel = jnp.tensordot(
        x, dy, axes=(batch_axes, batch_axes), preferred_element_type=precision.gradient
    )
    return dx, d_kernel.astype(kernel.dtype), d_bias


def sum_of_rows(x: jax.Array, kept: int) -> jax.Array:
    """[..., *kept] -> [*kept] float32: the sum over all but the last `kept` axes."""
    return jnp.sum(x, tuple(range(x.ndim - kept)), dtype=jnp.float32)


affine.defvjp(_forward, _backward)
