"""LeJEPA (arXiv 2511.08544): views of an image agree, and features are kept Gaussian by SIGReg.

No teacher, no stopped gradient: a model whose features are those of a standard normal distribution
in every direction cannot have collapsed.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.core.axes import MLP, STREAM, WIDTH
from vit_jax.core.errors import UserError
from vit_jax.core.schema.fields import ABOVE_0, COUNT, UP_TO_1, field
from vit_jax.learning.method import LossOutput, Method, Sizes, StepContext, StepInputs
from vit_jax.learning.methods import masking, views
from vit_jax.models.layers.initialization import ZEROS
from vit_jax.models.layers.linear import Linear, param

NORM_EPSILON = 1e-5  # of the projector's batch norms


class Projector(nnx.Module):
    """Two hidden layers, each with a norm over the batch and a ReLU, and a linear one."""

    def __init__(self, method: "LeJEPA", spec: Any, rngs: nnx.Rngs):
        make = functools.partial(
            Linear,
            kernel_init=jax.nn.initializers.he_uniform(),
            precision=spec.precision,
            rngs=rngs,
        )
        hidden, width = (method.projector_hidden,), (method.projector_width,)
        self.fc1 = make((spec.features,), hidden, (WIDTH,), (MLP,))
        self.fc2 = make(hidden, hidden, (MLP,), (STREAM,))
        self.fc3 = make(hidden, width, (MLP,), (STREAM,))
        ones = jax.nn.initializers.ones
        self.scale1, self.scale2 = (param(ones, hidden, (MLP,), None) for _ in range(2))
        self.bias1, self.bias2 = (param(ZEROS, hidden, (MLP,), None) for _ in range(2))

    def __call__(self, x: jax.Array, weight: jax.Array) -> jax.Array:
        """Features [B, V, D], weight [B] of the images -> [B, V, K] float32."""
        x = jax.nn.relu(batch_normed(self.fc1(x), weight, self.scale1[...], self.bias1[...]))
        x = jax.nn.relu(batch_normed(self.fc2(x), weight, self.scale2[...], self.bias2[...]))
        return self.fc3(x).astype(jnp.float32)


@dataclasses.dataclass(frozen=True)
class LeJEPA(Method):
    """The fields of config.method."""

    kind: str = field("lejepa")
    sigreg_weight: float = field(
        0.02,
        "share of SIGReg in the loss, lambda; the rest is that views agree",
        bounds=(0, UP_TO_1),
    )
    directions: int = field(256, "in which features are compared, new in each step", bounds=COUNT)
    knots: int = field(17, "of the integral over frequencies", bounds=(2, COUNT[1]))
    highest_frequency: float = field(3.0, "where that integral ends", bounds=(ABOVE_0, 100))
    projector_hidden: int = field(2048, "width of the projector's hidden layers", bounds=COUNT)
    projector_width: int = field(128, "width of what is compared", bounds=COUNT)

    reads_views = True

    @property
    def whole_batch(self) -> str | None:
        return f"sigreg_weight={self.sigreg_weight:g}"

    def check_name(self, name: str) -> None:
        masking.check_kind(self.kind, name, views.VIT, views.BIT)

    def check(self, name: str, spec: Any, sizes: Sizes) -> None:
        if not sizes.views:
            raise UserError("method.kind=lejepa compares views of an image: give input.views.")
        views.check_positions(name, spec, sizes)

    def extend(self, model: Any, rngs: nnx.Rngs) -> nnx.Module:
        return Projector(self, model.spec, rngs)

    def loss(
        self, model: Any, inputs: StepInputs, key: jax.Array, context: StepContext
    ) -> LossOutput:
        """The losses, and both of their parts."""
        images, weight = (inputs.images, *inputs.views), inputs.batch["weight"]
        direction_key, *keys = jax.random.split(key, 1 + len(images))
        features = jnp.concatenate(views.features(model, images, keys), axis=1)
        x = model.method(features, weight)  # [B, V, K]
        large = sum(view.shape == inputs.images.shape for view in images)  # the last, by size
        apart = jnp.mean(
            jnp.square(x - jnp.mean(x[:, -large:], axis=1, keepdims=True)), axis=(1, 2)
        )
        a = jax.random.normal(direction_key, (x.shape[-1], self.directions))
        a = a / jnp.linalg.norm(a, axis=0)
        sliced = jnp.einsum("bvk,ks->bvs", x, a, precision="highest")
        distance = jnp.mean(epps_pulley(sliced, weight, self.knots, self.highest_frequency))
        losses = (1.0 - self.sigreg_weight) * apart + self.sigreg_weight * distance
        sigreg = jnp.broadcast_to(distance, apart.shape)
        return LossOutput(losses, {"views_apart": apart, "sigreg": sigreg})


def epps_pulley(x: jax.Array, weight: jax.Array, knots: int, highest: float) -> jax.Array:
    """Samples [B, ...], weight [B] of 0 and 1 -> [...]: how far each column is from N(0, 1).

    B times the integral of |phi(t) - exp(-t^2 / 2)|^2 exp(-t^2 / 2) from -highest to highest, with
    phi the mean of exp(i t x); by the trapezoidal rule, of which symmetry leaves half (section 4).
    """
    t = jnp.linspace(0.0, highest, knots)
    normal = jnp.exp(-jnp.square(t) / 2)
    steps = jnp.full(knots, 2 * highest / (knots - 1)).at[jnp.array([0, -1])].divide(2)
    count = jnp.sum(weight)
    phase = x[..., None] * t
    shares = weight / jnp.maximum(count, 1.0)
    real, imaginary = (jnp.tensordot(shares, f(phase), 1) for f in (jnp.cos, jnp.sin))
    distances = jnp.square(real - normal) + jnp.square(imaginary)
    return count * jnp.sum(distances * normal * steps, axis=-1)


def batch_normed(x: jax.Array, weight: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
    """[B, V, M], weight [B] -> float32: with mean 0 and variance 1 over images and views."""
    x = x.astype(jnp.float32)
    shares = weight[:, None, None] / jnp.maximum(jnp.sum(weight) * x.shape[1], 1.0)
    mean = jnp.sum(shares * x, axis=(0, 1))
    variance = jnp.sum(shares * jnp.square(x - mean), axis=(0, 1))
    return (x - mean) * jax.lax.rsqrt(variance + NORM_EPSILON) * scale + bias
