"""Models from this project's own checkpoints, which describe themselves."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from etils import epath
from flax import nnx

from vit_jax import models
from vit_jax.core.errors import UserError
from vit_jax.models.vit import ViT, ViTSpec
from vit_jax.store import step_folder

FORMAT_VERSION = 1  # of the description that this code writes and reads


class Loaded(NamedTuple):
    """A model and what its checkpoint says besides."""

    model: ViT
    name: str  # such as "ViT-B/16"
    class_names: tuple[str, ...] | None
    step: int


def load(path: str | epath.Path, *, dtype: str | None = None) -> ViT:
    """The trained model of a checkpoint, in evaluation mode; the optimizer is not read.

    Args:
      path: a work directory (its newest checkpoint), its checkpoints folder or a step's folder.
      dtype: of the computation, "float32" or "bfloat16"; default: as it was trained.

    Raises:
      UserError: no checkpoint there, or one of a newer version.
      DamagedError: it cannot be read, or its bits have changed.
    """
    return load_described(path, dtype=dtype).model


def load_described(path: str | epath.Path, *, dtype: str | None = None) -> Loaded:
    """As `load`, with the rest of the description."""
    folder = step_folder.find(path)
    about = step_folder.read_description(folder)
    if about.get("format_version") != FORMAT_VERSION:
        raise UserError(
            f"{folder} has format version {about.get('format_version')}, this vit_jax reads "
            f"{FORMAT_VERSION}: install the version that wrote it."
        )
    fields = dict(about["model"])
    name = fields.pop("name")
    if dtype is not None:
        fields["dtype"] = dtype
    prepared = models.Preprocess(**{k: _tuples(v) for k, v in about["preprocess"].items()})

    def make() -> ViT:
        return ViT(
            ViTSpec(**fields),
            num_classes=about["num_classes"],
            image_size=prepared.image_size,
            preprocess=prepared,
            rngs=nnx.Rngs(0),
        )

    graph, variables = nnx.split(nnx.eval_shape(make), nnx.Param)
    params = step_folder.restore_params(folder, nnx.to_pure_dict(variables))
    names = about["class_names"]
    return Loaded(
        model=nnx.merge(graph, params),
        name=name,
        class_names=tuple(names) if names else None,
        step=int(folder.name),
    )


def describe(
    info: models.ModelInfo,
    *,
    num_classes: int,
    class_names: tuple[str, ...] | None,
    preprocess: models.Preprocess,
) -> dict[str, Any]:
    """What a checkpoint says about itself: all that `load` and prediction need, as JSON."""
    return {
        "format_version": FORMAT_VERSION,
        "model": {"name": info.name, **info.spec},
        "num_classes": num_classes,
        "class_names": list(class_names) if class_names else None,
        "preprocess": dataclasses.asdict(preprocess),
    }


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
