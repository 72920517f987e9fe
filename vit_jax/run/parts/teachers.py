"""The model that a method learns from; its classes have to be the data's, if they are read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from etils import epath
from jax.sharding import Mesh

from vit_jax import weights
from vit_jax.config import InputConfig, ModelConfig
from vit_jax.core import synsets
from vit_jax.core.class_names import agree, normal
from vit_jax.core.errors import UserError, naming, reading
from vit_jax.data import files
from vit_jax.learning.method import Method
from vit_jax.learning.teacher import Teacher
from vit_jax.models import head


def check_teacher(path: str) -> None:
    """UserError if nothing is at method.teacher; remote paths are not asked for."""
    if weights.is_name(path):
        weights.check_name(path)
    elif not files.is_remote(path):
        cure = "A run that is resumed needs its teacher too."
        with reading("method.teacher", path, cure=cure):
            epath.Path(path).expanduser().stat()


def teacher(
    method: Method,
    c: ModelConfig,
    images: InputConfig,
    mesh: Mesh,
    num_classes: int,
    class_names: Sequence[str] | None,
    channels: int,
) -> Teacher:
    """The teacher of a method that has one, by shapes and shardings, for data of these classes.

    c: of the model that it teaches, for images of so many channels. class_names: None: the data
    have none; (): not known, since no data were read.
    """
    path = method.teacher
    assert path is not None
    check_teacher(path)
    size = method.teacher_image_size
    with naming("method.teacher", path):
        model = weights.open_model(path, dtype=c.dtype, scan=c.scan, image_size=size, mesh=mesh)
        if dense := getattr(model.about.spec, "dense", None):
            raise UserError(f"gives no features of an image: it has model.dense={dense}.")
        if model.about.spec.channels != channels:
            raise UserError(
                f"sees {model.about.spec.channels} channels, and images have {channels}."
            )
    its_mean, its_std = np.array(model.preprocess.mean), np.array(model.preprocess.std)
    return Teacher(
        model,
        scale=tuple((np.array(images.std) / its_std).tolist()),
        shift=tuple(((np.array(images.mean) - its_mean) / its_std).tolist()),
        columns=_columns(path, model, num_classes, class_names)
        if method.reads_teacher_logits
        else None,
        num_classes=num_classes,
    )


def _columns(
    path: str, model: weights.LazyModel, num_classes: int, class_names: Sequence[str] | None
) -> tuple[int, ...] | None:
    """The teacher's logits of the data's classes; None for all of them in order.

    Its classes are known by their names, those of ImageNet by their WordNet ids, so that the data
    may have some of them. UserError if they have others.
    """
    if not model.num_classes or head.has_sigmoids(model.about.spec):
        has = "sigmoids" if model.num_classes else "no head"
        raise UserError(f"method.teacher={path} has {has}, not a distribution over classes.")
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
            f"method.teacher={path} has {model.num_classes:,} classes, not {num_classes:,}."
        )
    if names and class_names and not assumed:
        known = set(map(normal, names))
        other = next(name for name in class_names if normal(name) not in known)
        raise UserError(f"method.teacher={path} lacks {other!r}, a class of the data.")
    return None
