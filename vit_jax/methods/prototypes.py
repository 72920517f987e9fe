"""Features described by how near they are to learned prototypes (arXiv 2104.14294).

The head, and how a teacher's nearness becomes targets that do not collapse.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn import initializers

from vit_jax.core.axes import CLASSES, MLP, STREAM, WIDTH
from vit_jax.models.family import ModelSpec
from vit_jax.nn.linear import Linear, param

_NORM_EPSILON = 1e-12
_SINKHORN_ROUNDS = 3  # as in the code of arXiv 2304.07193


class PrototypeHead(nnx.Module):
    """An MLP of three layers, and the cosine of its result with each prototype.

    The prototypes are stored unnormalised, as their authors' weight normalisation with a length
    that stays 1.

    Args:
      spec: the model's fields.
      features: the width of what it gets.
      prototypes: K.
      centred: whether it keeps the running mean of the teacher's logits.
    """

    def __init__(
        self,
        spec: ModelSpec,
        features: int,
        *,
        hidden: int,
        bottleneck: int,
        prototypes: int,
        centred: bool,
        rngs: nnx.Rngs,
    ):
        init = initializers.truncated_normal(0.02, lower=-100, upper=100)
        make = lambda inputs, outputs, axes: Linear(
            (inputs,), (outputs,), axes[:1], axes[1:], kernel_init=init, precision=spec.precision,
            rngs=rngs,
        )  # fmt: skip
        self.fc1 = make(features, hidden, (WIDTH, MLP))
        self.fc2 = make(hidden, hidden, (MLP, STREAM))
        self.fc3 = make(hidden, bottleneck, (MLP, STREAM))
        bound = bottleneck**-0.5
        uniform = lambda key, shape, dtype: jax.random.uniform(key, shape, dtype, -bound, bound)
        self.prototypes = nnx.Dict(
            kernel=param(uniform, (bottleneck, prototypes), (WIDTH, CLASSES), rngs.params())
        )
        if centred:  # a statistic by its name, which the step moves (core/pytrees.py)
            self.running_mean = param(initializers.zeros, (prototypes,), (CLASSES,), None)

    def __call__(self, x: jax.Array, still: jax.Array | bool = False) -> jax.Array:
        """[..., D] -> cosines [..., K] float32; `still`: the prototypes get no gradient."""
        x = self.fc1(x)
        x = self.fc2(jax.nn.gelu(x, approximate=False))
        x = self.fc3(jax.nn.gelu(x, approximate=False))
        kernel = self.prototypes["kernel"][...]
        kernel = jnp.where(still, jax.lax.stop_gradient(kernel), kernel)
        x, kernel = unit(x.astype(jnp.float32), -1), unit(kernel, 0)
        return jnp.matmul(x.astype(self.fc1.precision.compute), kernel.astype(x.dtype)).astype(
            jnp.float32
        )


def unit(x: jax.Array, axis: int) -> jax.Array:
    """The vectors along an axis, of length 1."""
    squares = jnp.sum(jnp.square(x), axis=axis, keepdims=True)
    return x * jax.lax.rsqrt(jnp.maximum(squares, _NORM_EPSILON**2))


def centred(logits: jax.Array, centre: jax.Array, temperature: jax.Array) -> jax.Array:
    """A teacher's cosines [..., K] and their running mean [K] -> probabilities [..., K]."""
    return jax.nn.softmax((logits - centre) / temperature)


def sinkhorn(logits: jax.Array, weight: jax.Array, temperature: jax.Array) -> jax.Array:
    """Rows [R, K] -> probabilities [R, K] that use all prototypes alike (arXiv 2006.09882).

    weight: [R], 0 for a row that is not to count.
    """
    counted = weight[:, None] > 0
    x = jnp.where(counted, logits, -jnp.inf) / temperature
    q = jnp.exp(x - jnp.max(x))
    for _ in range(_SINKHORN_ROUNDS):
        of_prototype = jnp.sum(q, axis=0, keepdims=True)
        q = q / jnp.where(of_prototype > 0, of_prototype, 1.0)
        of_row = jnp.sum(q, axis=1, keepdims=True)
        q = q / jnp.where(of_row > 0, of_row, 1.0)
    return q


def moving(centre: jax.Array, logits: jax.Array, momentum: float) -> jax.Array:
    """Zeros [B] whose gradient by the centre [K] moves it towards the logits [B, ..., K].

    In the mean over a batch the step subtracts (1 - momentum) (centre - mean of the logits).
    """
    now = jax.lax.stop_gradient(centre)
    mean = jnp.mean(logits.reshape(logits.shape[0], -1, logits.shape[-1]), axis=1)
    away = (1.0 - momentum) * (now - jax.lax.stop_gradient(mean))
    return jnp.sum(away * (centre - now), axis=-1)


def cross_entropy(targets: jax.Array, logits: jax.Array, temperature: float) -> jax.Array:
    """Probabilities [..., K], a student's cosines [..., K] -> [...]."""
    return -jnp.sum(targets * jax.nn.log_softmax(logits / temperature), axis=-1)


def entropy(probabilities: jax.Array) -> jax.Array:
    """[..., K] -> [...], in nats."""
    return jnp.sum(jax.scipy.special.entr(probabilities), axis=-1)


def spreading(features: jax.Array, weight: jax.Array) -> jax.Array:
    """KoLeo (arXiv 1806.03198): minus the log of the distance to the nearest other, [B, D] -> [B].

    weight: [B], 0 for one that is nobody's neighbour.
    """
    x = unit(features.astype(jnp.float32), -1)
    b = x.shape[0]
    cosines = jax.lax.stop_gradient(x @ x.T)
    others = (weight[None] > 0) & ~jnp.eye(b, dtype=bool)
    nearest = jnp.argmax(jnp.where(others, cosines, -jnp.inf), axis=1)
    away = x - x[nearest] + 1e-8
    return -jnp.log(jnp.sqrt(jnp.sum(jnp.square(away), axis=-1)) + 1e-8)
