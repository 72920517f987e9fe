"""The teacher of a method: a trained model that the step computes beside its own."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax import models
from vit_jax.core.axes import BATCH, CLASSES, constrain


@dataclasses.dataclass(frozen=True)
class Teacher:
    """A trained model that no step changes.

    Its parameters are an argument of the step's program, neither constants in it nor part of the
    state: no checkpoint has them, and each start reads them again.
    """

    model: Any  # a weights.LazyModel, whose parameters are not read yet
    # Of each channel: they bring images from its normalisation to that of the model that learns.
    scale: tuple[float, ...]
    shift: tuple[float, ...]
    # Its logits of the data's classes; None: all of them, or it has no head.
    columns: tuple[int, ...] | None
    num_classes: int  # C, of the data

    @property
    def image_size(self) -> tuple[int, int]:
        """(height, width) of the images that it sees."""
        return self.model.preprocess.image_size

    @property
    def grid(self) -> tuple[int, int]:
        """(rows, columns) of patches, of a ViT."""
        return self.model.about.spec.token_layout(self.image_size).grid

    @property
    def forward_flops(self) -> int:
        """FLOPs of its products for one image."""
        spec = self.model.about.spec
        return models.forward_flops(spec, self.model.num_classes, self.image_size)

    def bind(self, params: Any) -> "BoundTeacher":
        """`StepContext.teacher`, of these parameters."""
        return BoundTeacher(self, nnx.merge(self.model.graph, params))


@dataclasses.dataclass(frozen=True)
class BoundTeacher:
    """A teacher with its parameters, in evaluation mode.

    Images are normalised as the model gets them, float32 [B, H, W, 3]; of another size than the
    teacher's they are resized on the device: bilinear, with antialiasing.
    """

    about: Teacher
    model: Any

    def __call__(self, images: jax.Array) -> jax.Array:
        """-> its logits of the data's classes, float32 [B, C]."""
        result = self.model(self._as_its_own(images)).astype(jnp.float32)
        if self.about.columns is not None:
            result = constrain(result[:, jnp.asarray(self.about.columns)], BATCH, CLASSES)
        return result

    def features(self, images: jax.Array) -> jax.Array:
        """-> what its head sees, [B, D]."""
        return self.model.features(self._as_its_own(images))

    def encode(self, images: jax.Array) -> tuple[jax.Array, Any]:
        """-> the same, and a ViT's tokens [B, N, D] after the last norm; else None."""
        if not hasattr(self.model, "encode"):
            return self.features(images), None
        tokens = self.model.tokens(self._as_its_own(images))
        return self.model.pool(tokens), tokens

    @property
    def grid(self) -> tuple[int, int]:
        """(rows, columns) of its patches, the last of its tokens."""
        return self.about.grid

    def _as_its_own(self, images: jax.Array) -> jax.Array:
        x = images * jnp.asarray(self.about.scale) + jnp.asarray(self.about.shift)
        if x.shape[1:3] != self.about.image_size:
            size = (x.shape[0], *self.about.image_size, x.shape[3])
            x = constrain(jax.image.resize(x, size, "bilinear"), BATCH, None, None, None)
        return x
