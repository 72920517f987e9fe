"""Distillation of features: a model learns what its teacher makes of images, without labels.

As in the distillation of DINOv2 (arXiv 2304.07193) and AM-RADIO (2312.06709): what the teacher's
head would see, and its patches. Linear layers, dropped afterwards, bring the model's to its widths.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn import initializers

from vit_jax.core.axes import STREAM, WIDTH
from vit_jax.core.errors import UserError
from vit_jax.core.schema.constraints import Constraint
from vit_jax.core.schema.fields import field
from vit_jax.learning.method import LossOutput, Sizes, StepContext, StepInputs
from vit_jax.learning.methods import views
from vit_jax.learning.methods.distillation import TaughtMethod
from vit_jax.models.layers.linear import Linear

_EPSILON = 1e-8  # of norms, as torch.nn.functional.cosine_similarity


class Projections(nnx.Module):
    """Linear layers to the teacher's widths, of features and, with a loss on them, of patches."""

    def __init__(self, spec: Any, teacher: Any, patches: bool, rngs: nnx.Rngs):
        make = functools.partial(
            Linear, kernel_init=initializers.lecun_normal(), precision=spec.precision, rngs=rngs
        )
        self.features = make((spec.features,), (teacher.features,), (WIDTH,), (STREAM,))
        if patches:
            self.patches = make((spec.width,), (teacher.width,), (WIDTH,), (STREAM,))


@dataclasses.dataclass(frozen=True)
class FeatureDistillation(TaughtMethod):
    """The fields of config.method."""

    kind: str = field("feature_distillation")
    distance: str = field(
        "cosine",
        "between both: 1 minus the `cosine`, or `smooth_l1` to the teacher's, which are brought to "
        "mean 0 and variance 1 over channels",
        choices=("cosine", "smooth_l1"),
    )
    feature_weight: float = field(1.0, "of what heads see", bounds=(0, 1e6))
    patch_weight: float = field(
        1.0,
        "of patches, the mean over them; the teacher's are interpolated where it has another "
        "number of them. 0: between models without patches",
        bounds=(0, 1e6),
    )

    reads_teacher_logits = False
    constraints = (
        *TaughtMethod.constraints,
        Constraint(
            "method.patch_weight",
            lambda c: not c.method.patch_weight and not c.method.feature_weight,
            "and method.feature_weight=0 leave nothing to learn.",
        ),
    )

    def check(self, name: str, spec: Any, sizes: Sizes) -> None:
        views.check_patch_weight(self.patch_weight, name)

    def extend_for(self, teacher: Callable[[], Any], model: Any, rngs: nnx.Rngs) -> nnx.Module:
        fields = teacher()
        if self.patch_weight and not hasattr(fields, "width"):
            raise UserError(
                f"method.patch_weight={self.patch_weight:g}: method.teacher={self.teacher} has no "
                "patches. Set 0."
            )
        return Projections(model.spec, fields, bool(self.patch_weight), rngs)

    def loss(
        self, model: Any, inputs: StepInputs, key: jax.Array, context: StepContext
    ) -> LossOutput:
        """The distances, and the cosines that the model's features have with the teacher's."""
        features, tokens = views.encode(model, inputs.images, key)
        targets, target_tokens = jax.lax.stop_gradient(context.teacher.encode(inputs.images))
        features = model.method.features(features)
        losses = self.feature_weight * self.distances(features, targets)
        metrics = {"feature_cosine": cosine(features, targets)}
        if self.patch_weight:
            assert tokens is not None  # of ViTs
            grid = model.spec.token_layout(inputs.images.shape[1:3]).grid
            patches = model.method.patches(tokens[:, -grid[0] * grid[1] :])
            target_patches = on_grid(target_tokens, context.teacher.grid, grid)
            each = self.distances(patches, target_patches)
            losses += self.patch_weight * jnp.mean(each, axis=1)
            metrics["patch_cosine"] = jnp.mean(cosine(patches, target_patches), axis=1)
        return LossOutput(losses, metrics)

    def distances(self, x: jax.Array, targets: jax.Array) -> jax.Array:
        """[..., D], [..., D] -> float32 [...]."""
        if self.distance == "cosine":
            return 1.0 - cosine(x, targets)
        return smooth_l1(x.astype(jnp.float32), jax.nn.standardize(targets.astype(jnp.float32)))


def cosine(x: jax.Array, y: jax.Array) -> jax.Array:
    """[..., D], [..., D] -> float32 [...]."""
    x, y = x.astype(jnp.float32), y.astype(jnp.float32)
    squares = [jnp.maximum(jnp.sum(jnp.square(z), axis=-1), _EPSILON**2) for z in (x, y)]
    return jnp.sum(x * y, axis=-1) * jax.lax.rsqrt(squares[0]) * jax.lax.rsqrt(squares[1])


def smooth_l1(x: jax.Array, y: jax.Array) -> jax.Array:
    """[..., D], [..., D] -> [...]: the mean of d^2 / 2, and of |d| - 1/2 from 1 on."""
    d = jnp.abs(x - y)
    return jnp.mean(jnp.where(d < 1, jnp.square(d) / 2, d - 0.5), axis=-1)


def on_grid(tokens: jax.Array, grid: tuple[int, int], wanted: tuple[int, int]) -> jax.Array:
    """Tokens [B, N, D], patches of a grid last -> patches of another, bilinear, [B, M, D]."""
    patches = tokens[:, -grid[0] * grid[1] :].astype(jnp.float32)
    if grid == wanted:
        return patches
    maps = patches.reshape(len(patches), *grid, -1)
    maps = jax.image.resize(maps, (len(maps), *wanted, maps.shape[-1]), "bilinear")
    return maps.reshape(len(maps), -1, maps.shape[-1])
