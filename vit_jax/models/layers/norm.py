"""Norms: a transformer's, by name, the group norm of ResNets, and batch norm."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn import initializers

from vit_jax.models.layers.linear import Initializer, Precision, param

EPSILON = 1e-6  # layer norms, as in the released weights
# "layer": layer norm; "layer_no_bias": the same without a learned offset; "rms": not
# centred either (arXiv 1910.07467), as in ViT-22B (arXiv 2302.05442, section 2).
NORMS = ("layer", "layer_no_bias", "rms")
GROUPS = 32  # of a group norm


def norm(
    kind: str,
    width: int,
    axis: str,
    *,
    epsilon: float = EPSILON,
    precision: Precision,
    rngs: nnx.Rngs,
) -> nnx.Module:
    """One of NORMS over a last axis of size `width`, named `axis`; float32 statistics."""
    ones, zeros = (
        nnx.with_metadata(init, axes=(axis,)) for init in (initializers.ones, initializers.zeros)
    )
    common: Any = {
        "epsilon": epsilon, "dtype": precision.compute, "scale_init": ones, "rngs": rngs
    }  # fmt: skip
    if kind == "rms":
        return nnx.RMSNorm(width, **common)
    return nnx.LayerNorm(width, use_bias=kind == "layer", bias_init=zeros, **common)


class GroupNorm(nnx.Module):
    """Normalisation of 32 groups of neighbouring channels to mean 0 and variance 1.

    Statistics are over all positions of one example (arXiv 1803.08494).
    """

    def __init__(
        self,
        channels: int,
        axis: str,
        spec: Any,
        rngs: nnx.Rngs,
        scale_init: Initializer = initializers.ones,
    ):
        self.scale = param(scale_init, (channels,), (axis,), rngs.params())
        self.bias = param(initializers.zeros, (channels,), (axis,), rngs.params())
        self.epsilon, self.precision = spec.group_norm_epsilon, spec.precision

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, H, W, C] -> [B, H, W, C]; statistics in float32."""
        groups = x.reshape(*x.shape[:-1], GROUPS, -1).astype(jnp.float32)
        over = (1, 2, 4)
        groups = groups - jnp.mean(groups, axis=over, keepdims=True)
        variance = jnp.mean(jnp.square(groups), axis=over, keepdims=True)
        groups = groups * jax.lax.rsqrt(variance + self.epsilon)
        y = groups.reshape(x.shape) * self.scale[...] + self.bias[...]
        return y.astype(self.precision.compute)


class BatchNormFields(NamedTuple):
    """The settings of batch norms; the defaults are PyTorch's."""

    precision: Precision
    batch_norm_epsilon: float = 1e-5
    batch_norm_momentum: float = 0.9  # what a step keeps of the running mean and variance
    frozen_statistics: bool = False


class BatchNorm(nnx.Module):
    """Normalisation of each channel to mean 0 and variance 1, then a learned scale and bias.

    The running mean and variance (arXiv 1502.03167) are among the model's parameters, so that
    checkpoints, averages, evaluations and formats of weights have them as all others; no optimizer
    sees them (core/pytrees.py). What the backward pass gives in place of their gradient is what a
    step subtracts from them: nothing is changed in place, and scans and rematerialisation need
    nothing of their own.

    In training by the moments of the whole batch, over all devices, where nothing is frozen
    (`frozen_statistics`); in evaluation by the running ones. The variance is the batch's own,
    divided by the number of values, in both: PyTorch divides the running one by one less.
    """

    def __init__(self, channels: int, axis: str, spec: Any):
        ones, zeros = initializers.ones, initializers.zeros  # constants draw no numbers
        self.scale, self.bias, self.running_mean, self.running_variance = (
            param(init, (channels,), (axis,), None) for init in (ones, zeros, zeros, ones)
        )
        self.spec = spec

    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        """[..., C] -> [..., C]; moments in float32."""
        wide = x.astype(jnp.float32)
        old = self.running_mean[...], self.running_variance[...]
        if not train or self.spec.frozen_statistics:
            y = self._normed(wide, *map(jax.lax.stop_gradient, old))
            return y.astype(self.spec.precision.compute)
        over = tuple(range(x.ndim - 1))
        mean = jnp.mean(wide, over)
        variance = jnp.mean(jnp.square(wide - mean), over)
        y = self._normed(wide, mean, variance).astype(self.spec.precision.compute)
        for now, batch in zip(old, (mean, variance), strict=True):
            away = (1.0 - self.spec.batch_norm_momentum) * jax.lax.stop_gradient(now - batch)
            y = _with_gradient(y, now, away)
        return y

    def _normed(self, x: jax.Array, mean: jax.Array, variance: jax.Array) -> jax.Array:
        factor = self.scale[...] * jax.lax.rsqrt(variance + self.spec.batch_norm_epsilon)
        return (x - mean) * factor + self.bias[...]


@jax.custom_vjp
def _with_gradient(y: jax.Array, statistic: jax.Array, gradient: jax.Array) -> jax.Array:
    """y; the gradient by `statistic` is `gradient`, whatever the loss."""
    return y


_with_gradient.defvjp(
    lambda y, statistic, gradient: (y, gradient), lambda gradient, dy: (dy, gradient, None)
)
