"""A method of pre-training, as a step sees it; methods/ has those other than by labels."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax import models
from vit_jax.core.axes import BATCH, CLASSES, constrain
from vit_jax.core.errors import UserError
from vit_jax.core.schema.constraints import Constraint
from vit_jax.core.schema.entry_points import left_open
from vit_jax.core.schema.fields import field
from vit_jax.parallel.products import Products, count


class StepInputs(NamedTuple):
    """The inputs of a loss; every array's axis 0 is the batch's.

    Attributes:
      images: float32 [B, H, W, 3], normalised; mixed where the config says so.
      targets: float32 [B, C], as the loss asks for them.
      batch: losses.Batch, as it arrived.
      views: further views of the images, float32 [B, h, w, 3] each, normalised (input.views).
      labels: bool [B, C], the main label of each image, before targets are smoothed.
    """

    images: jax.Array
    targets: jax.Array
    batch: dict[str, Any]
    views: tuple[jax.Array, ...] = ()
    labels: Any = None


class StepContext(NamedTuple):
    """The things that a loss may use beside the model and its inputs.

    Attributes:
      averaged: the model with the EMA of its parameters, where the run has one.
      teacher: the run's other model, where the method has one.
      progress: float32 [], the share of the run's steps that came before, in [0, 1).
      label_losses: logits [B, C], targets [B, C] -> [B], by the section `loss`.
      state: the module of `Method.make_state`, as the step before left it.
    """

    averaged: Any
    teacher: Any = None  # a BoundTeacher
    progress: Any = 0.0
    label_losses: Any = None
    state: Any = None


class LossOutput(NamedTuple):
    """The losses and metrics of a forward pass.

    Attributes:
      losses: [B]; the weighted mean is minimised.
      metrics: [B] each, by name; their weighted means are logged. Of a pair the second says which
        images count, by 1 and 0.
      observed: arrays for `Method.next_state`, of any shapes.
    """

    losses: jax.Array
    metrics: Mapping[str, jax.Array | tuple[jax.Array, jax.Array]]
    observed: Any = ()


@dataclasses.dataclass(frozen=True)
class Teacher:
    """A trained model that no step changes.

    Its parameters are an argument of the step's program, neither constants in it nor part of the
    state: no checkpoint has them, and each start reads them again.

    Attributes:
      model: a weights.LazyModel, whose parameters are not read yet.
      scale, shift: of each channel, which bring images from the trained model's normalisation to
        this one's.
      columns: its logits of the data's classes; None: all of them, or it has no head.
      num_classes: C, of the data.
    """

    model: Any
    scale: tuple[float, ...]
    shift: tuple[float, ...]
    columns: tuple[int, ...] | None
    num_classes: int

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


@dataclasses.dataclass(frozen=True)
class CountedTeacher:
    """Stands in for a BoundTeacher where products are counted: shapes, and the images it saw."""

    about: Teacher
    seen: list[int]

    def __call__(self, images: jax.Array) -> jax.Array:
        """[B, C]."""
        return self._zeros(images, self.about.num_classes)

    def features(self, images: jax.Array) -> jax.Array:
        """[B, D]."""
        return self._zeros(images, self.about.model.about.spec.features)

    def encode(self, images: jax.Array) -> tuple[jax.Array, Any]:
        """[B, D], [B, N, D]."""
        spec, features = self.about.model.about.spec, self.features(images)
        if not hasattr(spec, "width"):
            return features, None
        tokens = spec.token_layout(self.about.image_size).num_tokens
        return features, jnp.zeros((len(images), tokens, spec.width))

    @property
    def grid(self) -> tuple[int, int]:
        """(rows, columns)."""
        return self.about.grid

    def _zeros(self, images: jax.Array, *sides: int) -> jax.Array:
        self.seen.append(len(images))
        return jnp.zeros((len(images), *sides))


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


def _is_float(x: Any, shape: tuple[int, ...]) -> bool:
    return jnp.shape(x) == shape and jnp.issubdtype(jnp.result_type(x), jnp.floating)


def count_products(
    method: Method,
    make_model: Callable[[nnx.Rngs], nnx.Module],
    sizes: Sizes,
    *,
    batch_size: int,
    num_classes: int,
    has_average: bool,
    teacher: Teacher | None,
) -> Products:
    """Counts the FLOPs of one example's products in the program of its losses; computes nothing.

    has_average: whether the run keeps an EMA of the weights.
    UserError where the method does not give a loss of each image.
    """
    both = nnx.eval_shape(lambda: with_state(method, make_model, nnx.Rngs(0)))
    (graph, variables), (state_graph, state) = (nnx.split(x, nnx.Param) for x in both)
    params, b = nnx.to_pure_dict(variables), batch_size
    counted = None if teacher is None else CountedTeacher(teacher, [])

    def shape(*sides: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((b, *sides), dtype)

    images = [shape(*size, sizes.channels) for size in (sizes.image, *sizes.views)]
    names = ("image", *view_names(len(sizes.views)))
    batch = {
        **{n: shape(*x.shape[1:], dtype=jnp.uint8) for n, x in zip(names, images, strict=True)},
        "labels": shape(1, dtype=jnp.int32),
        "weight": shape(),
        **{name: shape(*sizes.image, dtype=jnp.uint16) for name in method.reads_maps},
    }

    def losses(params: Any, rest: Any, images: Any, targets: Any, batch: Any) -> Any:
        averaged, progress, state = rest
        output = method.loss(
            nnx.merge(graph, params),
            StepInputs(images[0], targets, batch, tuple(images[1:])),
            jax.random.key(0),
            StepContext(
                nnx.merge(graph, averaged) if has_average else None,
                counted,
                progress,
                state=nnx.merge(state_graph, state),
            ),
        )
        if isinstance(output, LossOutput) and _is_float(output.losses, (b,)):
            return jnp.sum(output.losses), output.metrics
        raise UserError(
            f"method.kind={method.kind}: `loss` gives {jax.tree.map(jax.typeof, output)}, not a "
            f"LossOutput with floating-point losses [{b}]."
        )

    progress = jax.ShapeDtypeStruct((), jnp.float32)
    arguments = (params, (params, progress, state), images, shape(num_classes), batch)
    program, outputs = jax.make_jaxpr(losses, return_shape=True)(*arguments)
    flops = count(
        program,
        trained=[i == 0 for i, each in enumerate(arguments) for _ in jax.tree.leaves(each)],
        losses=[i == 0 for i, _ in enumerate(jax.tree.leaves(outputs))],
    )
    taught = 0 if counted is None else sum(counted.seen) * counted.about.forward_flops
    return Products(flops.learnt / b, (flops.given + taught) / b)
