"""Batch normalisation (arXiv 1502.03167), whose running statistics travel as gradients.

A step knows parameters, and their gradients. The running mean and variance are among a model's
parameters, so that checkpoints, averages, evaluations and formats of weights have them as they have
all others, but no optimizer sees them (core/pytrees.py): what the backward pass gives in place of
their gradient is what the step subtracts from them. So nothing is changed in place, and scans and
rematerialisation need nothing of their own.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn import initializers

from vit_jax.nn.efficientnet.spec import MBConvSpec
from vit_jax.nn.linear import param


class BatchNorm(nnx.Module):
    """Normalisation of each channel to mean 0 and variance 1, then a learned scale and bias.

    In training by the moments of the whole batch, over all devices, where nothing is frozen
    (`frozen_statistics`); in evaluation by the running ones. The variance is the batch's own,
    divided by the number of values, in both: PyTorch divides the running one by one less.

    Args:
      channels: C.
      axis: their logical name.
    """

    def __init__(self, channels: int, axis: str, spec: MBConvSpec):
        of = lambda init: param(init, (channels,), (axis,), None)  # constants draw no numbers
        self.scale, self.bias = of(initializers.ones), of(initializers.zeros)
        self.running_mean, self.running_variance = of(initializers.zeros), of(initializers.ones)
        self.spec = spec

    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        """[B, H, W, C] -> [B, H, W, C]; moments in float32."""
        wide = x.astype(jnp.float32)
        old = self.running_mean[...], self.running_variance[...]
        if not train or self.spec.frozen_statistics:
            y = self._normed(wide, *map(jax.lax.stop_gradient, old))
            return y.astype(self.spec.precision.compute)
        over = (0, 1, 2)
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
    lambda y, statistic, gradient: (y, gradient),
    lambda gradient, dy: (dy, gradient, None),
)
