"""A method of pre-training, as a step sees it; methods/ has those other than by labels."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import jax
from flax import nnx

from vit_jax.core.schema.constraints import Constraint
from vit_jax.core.schema.entry_points import left_open
from vit_jax.core.schema.fields import field


class StepInputs(NamedTuple):
    """The inputs of a loss; every array's axis 0 is the batch's."""

    images: jax.Array  # float32 [B, H, W, 3], normalised; mixed where the config says so
    targets: jax.Array  # float32 [B, C], as the loss asks for them
    batch: dict[str, Any]  # losses.Batch, as it arrived
    # Further views of the images, float32 [B, h, w, 3] each, normalised (input.views).
    views: tuple[jax.Array, ...] = ()
    labels: Any = None  # bool [B, C], the main label of each image, before targets are smoothed


class StepContext(NamedTuple):
    """The things that a loss may use beside the model and its inputs."""

    averaged: Any  # the model with the EMA of its parameters, where the run has one
    teacher: Any = None  # a BoundTeacher of the run's other model, where the method has one
    progress: Any = 0.0  # float32 [], the share of the run's steps that came before, in [0, 1)
    label_losses: Any = None  # logits [B, C], targets [B, C] -> [B], by the section `loss`
    state: Any = None  # the module of `Method.make_state`, as the step before left it


class LossOutput(NamedTuple):
    """The losses and metrics of a forward pass."""

    losses: jax.Array  # [B]; the weighted mean is minimised
    # [B] each, by name; their weighted means are logged. Of a pair the second says which images
    # count, by 1 and 0.
    metrics: Mapping[str, jax.Array | tuple[jax.Array, jax.Array]]
    observed: Any = ()  # arrays for `Method.next_state`, of any shapes


def view_names(number: int) -> list[str]:
    """The names of so many further views of the images in a batch."""
    return [f"view{i + 1}" for i in range(number)]


class Sizes(NamedTuple):
    """(height, width) in pixels, and the number of channels."""

    image: tuple[int, int]
    views: tuple[tuple[int, int], ...] = ()
    channels: int = 3


@dataclasses.dataclass(frozen=True)
class Method:
    """A method of pre-training: a frozen dataclass of its fields, `kind` among them.

    The answers here suit all models, one view of an image, and an EMA by optim.ema_decay.

    Attributes:
      uses_labels: whether the model has a head over the data's classes.
      num_outputs: of that head, where they are not classes.
      reads_views: whether it learns from `StepInputs.views`.
      reads_maps: names of the maps beside an image that it learns from, such as "mask".
      reads_teacher_logits: whether its teacher has to have a head over the data's classes.
      constraints: rules for its fields together, and with others of the config.
    """

    kind: str = field("")
    uses_labels: ClassVar[bool] = False
    num_outputs: ClassVar[int | None] = None
    reads_views: ClassVar[bool] = False
    reads_maps: ClassVar[tuple[str, ...]] = ()
    reads_teacher_logits: ClassVar[bool] = True
    constraints: ClassVar[tuple[Constraint, ...]] = ()

    @property
    def reads_of_loss(self) -> tuple[str, ...]:
        """The fields of the section `loss` that it reads."""
        return ()

    @property
    def teacher(self) -> str | None:
        """The path of the weights of another model that it learns from; None: there is none."""
        return None

    @property
    def teacher_image_size(self) -> int | None:
        """The side in pixels of the images that the teacher sees; None: as it was trained."""
        return None

    @property
    def whole_batch(self) -> str | None:
        """The field, as name=value, by which an image's loss depends on the others of its batch."""
        return None

    def check_name(self, name: str) -> None:
        """Raises UserError for a model that it cannot learn with, whatever its fields."""

    def check(self, name: str, spec: Any, sizes: Sizes) -> None:
        """Raises UserError for a model's fields, or sizes of images, that it cannot learn with."""

    def extend(self, model: Any, rngs: nnx.Rngs) -> nnx.Module | None:
        """Makes what is trained beside the model, which then has it as `model.method`; or None."""

    def extend_for(
        self, teacher: Callable[[], Any], model: Any, rngs: nnx.Rngs
    ) -> nnx.Module | None:
        """As `extend`, where that depends on the fields of the teacher: teacher() reads them."""
        return self.extend(model, rngs)

    def make_state(self, model: Any, rngs: nnx.Rngs) -> nnx.Module:
        """Makes what it carries from step to step: a centre, a queue, a copy of the model.

        Its `nnx.Param`s, made by `models.layers.linear.param` or taken from the model, lie on the
        devices by the names of their axes. No optimizer changes them; checkpoints have them.
        """
        return nnx.Dict()

    def next_state(self, state: Any, observed: Any, context: StepContext) -> Any:
        """The module after a step, or `state` itself with other values. Not applied to a bad step.

        observed: `LossOutput.observed`, of all microbatches on a new axis 0.
        """
        return state

    def averaging(self, progress: Any) -> Any:
        """The EMA's decay by `StepContext.progress`; None: as optim.ema_decay says."""

    @left_open
    def loss(
        self, model: Any, inputs: StepInputs, key: jax.Array, context: StepContext
    ) -> LossOutput:
        """Computes the losses by one forward pass. `key`: for all that is random in it."""
        raise NotImplementedError  # every method has its own: `left_open`

    def warning(self, row: Mapping[str, float], progress: float) -> str | None:
        """Tells what is wrong, by a row of the log and `StepContext.progress`; None: nothing."""


STATELESS = Method()


def with_state(
    method: Method, make_model: Callable[[nnx.Rngs], nnx.Module], rngs: nnx.Rngs
) -> tuple[nnx.Module, nnx.Module]:
    """A model, and the module of the method's state."""
    model = make_model(rngs)
    return model, method.make_state(model, rngs)
