"""The model that a method learns from: its classes have to be those of the data."""

from __future__ import annotations

from collections.abc import Sequence

from etils import epath
from jax.sharding import Mesh

from vit_jax import weights
from vit_jax.config import RunConfig
from vit_jax.core import synsets
from vit_jax.core.class_names import agree, normal
from vit_jax.core.errors import UserError, nearest_multiple
from vit_jax.data import files
from vit_jax.learning.method import Teacher
from vit_jax.models import head
from vit_jax.run.parts.networks import pretraining
from vit_jax.run.parts.pins import prefix_field

_HEADLESS = (
    "method.teacher={path} has no head over classes: give weights of a model that classifies the "
    "classes of the data."
)
_SIGMOIDS = (
    "method.teacher={path} gives each class a probability of its own, as for several labels of an "
    "image, but one distribution over the classes is learnt: give weights trained on single labels."
)


def check_teacher(config: RunConfig) -> None:
    """UserError if nothing is at method.teacher; remote paths are not asked for."""
    method = pretraining(config)
    path = method and method.teacher
    if path and weights.is_name(path):
        weights.check_name(path)
    elif path and not files.is_remote(path) and not epath.Path(path).expanduser().exists():
        raise UserError(
            f"method.teacher={path} does not exist: give a work directory, a checkpoint or a file "
            "of weights. A run that is resumed needs it too, since its checkpoints do not have it."
        )


def teacher(
    config: RunConfig, mesh: Mesh, *, num_classes: int, class_names: Sequence[str] | None
) -> Teacher | None:
    """The teacher by shapes and shardings, if the run's method has one; for data of these classes.

    class_names: None: the data have none; (): not known, since no data were read.
    """
    method, images = pretraining(config), config.input
    if method is None or not method.teacher:
        return None
    check_teacher(config)
    path = method.teacher
    try:
        _check_size(path, method.teacher_image_size)
        model = weights.open_model(
            path,
            dtype=config.model.dtype,
            scan=config.model.scan,
            image_size=method.teacher_image_size,
            mesh=mesh,
        )
    except UserError as error:
        raise prefix_field("method.teacher", path, error) from error
    pairs = list(zip(images.mean, images.std, strict=True))
    theirs = list(zip(model.preprocess.mean, model.preprocess.std, strict=True))
    both = list(zip(pairs, theirs, strict=True))
    return Teacher(
        model,
        scale=tuple(std / its_std for (_, std), (_, its_std) in both),
        shift=tuple((mean - its_mean) / its_std for (mean, _), (its_mean, its_std) in both),
        columns=_columns(path, model, num_classes, class_names),
        num_classes=num_classes,
    )


def _check_size(path: str, size: int | None) -> None:
    """UserError unless the teacher's patches tile images of `size` pixels a side; None: its own."""
    if size is None:
        return
    about = weights.checkpoint_info(path)
    patch = getattr(about.spec, "patch_size", 1)
    if size % patch and about.preprocess.image_size != (size, size):
        raise UserError(
            f"its patches of {patch} pixels do not tile the images of method.teacher_image_size="
            f"{size}; nearest: {nearest_multiple(size, patch)}. Change that."
        )


def _columns(
    path: str, model: weights.LazyModel, num_classes: int, class_names: Sequence[str] | None
) -> tuple[int, ...] | None:
    """The teacher's logits of the data's classes; None for all of them in order.

    Its classes are known by their names, those of ImageNet by their WordNet ids, so that the data
    may have some of them. UserError if they have others.
    """
    if not model.num_classes:
        raise UserError(_HEADLESS.format(path=path))
    if head.has_sigmoids(model.about.spec):
        raise UserError(_SIGMOIDS.format(path=path))
    names, assumed = weights.names_of_classes(model.class_names, model.num_classes)
    differs = model.num_classes != num_classes
    if names and class_names:
        if agree(class_names, names):
            return None
        columns = synsets.places(class_names, names)
        if columns is not None:
            return columns
    if class_names == () and model.num_classes >= num_classes:
        # The data are to be read elsewhere: of what shape the logits are is all that counts.
        return tuple(range(num_classes)) if differs else None
    if differs:
        raise UserError(
            f"method.teacher={path} has {model.num_classes:,} classes, the data have "
            f"{num_classes:,}, and these are not among its classes by name: a teacher has to know "
            "the classes of the data."
        )
    if names and class_names and not assumed:
        known = set(map(normal, names))
        other = next(name for name in class_names if normal(name) not in known)
        raise UserError(
            f"method.teacher={path} has other classes than the data: {other!r} is none of them. A "
            "teacher has to know the classes of the data."
        )
    return None
