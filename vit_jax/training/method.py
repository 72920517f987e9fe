"""A method of pre-training other than by labels, as a step sees it (vit_jax/methods has them)."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.core.axes import BATCH, CLASSES, constrain
from vit_jax.weights import LazyModel


class Inputs(NamedTuple):
    """What a step learns from; every array's axis 0 is the batch's.

    Attributes:
      images: float32 [B, H, W, 3], normalised; mixed where the config says so.
      targets: float32 [B, C], as the loss asks for them.
      batch: objective.Batch, as it arrived.
      views: further views of the images, float32 [B, h, w, 3] each, normalised (input.views).
    """

    images: jax.Array
    targets: jax.Array
    batch: dict[str, Any]
    views: tuple[jax.Array, ...] = ()


class Others(NamedTuple):
    """What a step knows beside the model and its inputs.

    Attributes:
      averaged: the model with the EMA of its parameters, where the run has one.
      teacher: the run's other model, where the method has one: normalised images [B, H, W, 3], as
        the model gets them, -> its logits of the data's classes, float32 [B, C].
      progress: float32 [], the share of the run's steps that came before, in [0, 1).
    """

    averaged: Any
    teacher: Callable[[jax.Array], jax.Array] | None = None
    progress: Any = 0.0


class Learnt(NamedTuple):
    """The result of a forward pass.

    Attributes:
      losses: [B]; the weighted mean is minimised.
      numbers: [B] each, by name; their weighted means are logged. Of learning from labels: the
        logits, [B, C].
    """

    losses: jax.Array
    numbers: Any


@dataclasses.dataclass(frozen=True)
class Teacher:
    """A trained model that no step changes.

    Its parameters are an argument of the step's program, neither constants in it nor part of the
    state: no checkpoint has them, and each start reads them again.

    Attributes:
      model: the model, whose parameters are not read yet.
      scale, shift: of each channel, which bring images from the trained model's normalisation to
        this one's.
      columns: its logits of the data's classes; None: all of them.
      num_classes: C, of the data.
    """

    model: LazyModel
    scale: tuple[float, ...]
    shift: tuple[float, ...]
    columns: tuple[int, ...] | None
    num_classes: int

    @property
    def image_size(self) -> tuple[int, int]:
        """(height, width) of the images that it sees."""
        return self.model.preprocess.image_size

    @property
    def forward_flops(self) -> int:
        """FLOPs of its products for one image."""
        return int(self.model.about.spec.forward_flops(self.model.num_classes, self.image_size))

    def bind(self, params: Any) -> Callable[[jax.Array], jax.Array]:
        """`Others.teacher`, in evaluation mode, of these parameters.

        Images of another size are resized on the device: bilinear, with antialiasing.
        """

        def logits(images: jax.Array) -> jax.Array:
            x = images * jnp.asarray(self.scale) + jnp.asarray(self.shift)
            if x.shape[1:3] != self.image_size:
                size = (x.shape[0], *self.image_size, x.shape[3])
                x = constrain(jax.image.resize(x, size, "bilinear"), BATCH, None, None, None)
            result = nnx.merge(self.model.graph, params)(x).astype(jnp.float32)
            if self.columns is not None:
                result = constrain(result[:, jnp.asarray(self.columns)], BATCH, CLASSES)
            return result

        return logits


def view_names(number: int) -> list[str]:
    """The names of so many further views of the images in a batch."""
    return [f"view{i + 1}" for i in range(number)]


class Sizes(NamedTuple):
    """(height, width) in pixels.

    Attributes:
      image: of the training images.
      views: of their further views.
    """

    image: tuple[int, int]
    views: tuple[tuple[int, int], ...] = ()


class Method(Protocol):
    """A dataclass of the method's fields, `kind` among them, with what they mean.

    Attributes:
      uses_labels: whether the model has a head over the data's classes; then also `reads_of_loss`,
        the fields of the section `loss` that it reads.
      teacher: only of methods that learn from another model: the path of its weights; and
        `teacher_image_size`, None for the weights' own.
      reads_views: whether it learns from `Inputs.views`.
    """

    @property
    def kind(self) -> str:
        """Its name."""
        ...

    @property
    def uses_labels(self) -> bool:
        """Whether the model has a head over the data's classes."""
        ...

    @property
    def reads_views(self) -> bool:
        """Whether it learns from `Inputs.views`."""
        ...

    @property
    def whole_batch(self) -> str | None:
        """The field, as name=value, by which an image's loss depends on the others of its batch."""
        ...

    def check_name(self, name: str) -> None:
        """UserError for a model that it cannot learn with, whatever its fields."""
        ...

    def check(self, name: str, spec: Any, sizes: Sizes) -> None:
        """UserError for fields of a model, or images of these sizes, that it cannot learn with."""
        ...

    def extend(self, model: Any, rngs: nnx.Rngs) -> nnx.Module | None:
        """What is trained beside the model, which then has it as `model.method`; or None."""
        ...

    def averaging(self, progress: Any) -> Any:
        """The share that the EMA keeps in an update, by `Others.progress`; None: as optim says."""
        ...

    def learn(self, model: Any, inputs: Inputs, key: jax.Array, others: Others) -> Learnt:
        """One forward pass. `key`: for all that is random in it."""
        ...

    def warning(self, row: Mapping[str, float], progress: float) -> str | None:
        """What is wrong, by a row of the log and `Others.progress`; None: nothing."""
        ...


@dataclasses.dataclass(frozen=True)
class Plain:
    """The answers of a method for all models, with one view of an image, no EMA of its own and no
    warnings.
    """

    uses_labels = False
    reads_views = False

    @property
    def whole_batch(self) -> str | None:
        """None: the loss of an image is its own."""
        return None

    def check_name(self, name: str) -> None:
        """Nothing is wrong with any model."""
        del name

    def extend(self, model: Any, rngs: nnx.Rngs) -> nnx.Module | None:
        """Nothing is trained beside the model."""
        del model, rngs
        return None

    def averaging(self, progress: Any) -> Any:
        """As optim.ema_decay says."""
        del progress

    def warning(self, row: Mapping[str, float], progress: float) -> str | None:
        """None."""
        del row, progress
        return None
