"""Models from this project's own checkpoints, which describe themselves."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from etils import epath
from flax import nnx
from jax.sharding import Mesh

from vit_jax import models
from vit_jax.core.errors import UserError
from vit_jax.dist import parameters
from vit_jax.nn.posemb import TokenLayout
from vit_jax.store import step_folder

FORMAT_VERSION = 1  # of the description that this code writes and reads


class Loaded(NamedTuple):
    """A model and what its checkpoint says besides."""

    model: Any  # of models.create
    name: str  # such as "ViT-B/16"
    class_names: tuple[str, ...] | None
    step: int


@dataclasses.dataclass(frozen=True)
class Description:
    """What a checkpoint says about itself; none of its arrays is read.

    Attributes:
      folder: the step's.
      name: such as "ViT-B/16".
      spec: the fields of its model.
      preprocess: what prediction makes of an image.
      shapes: of its arrays, by name.
    """

    folder: epath.Path
    name: str
    spec: Any
    num_classes: int
    class_names: tuple[str, ...] | None
    preprocess: models.Preprocess
    shapes: dict[str, tuple[int, ...]]

    @property
    def step(self) -> int:
        """The number of updates behind it."""
        return int(self.folder.name)

    @property
    def tokens(self) -> TokenLayout:
        """Where the tokens of its model come from."""
        return models.token_layout(self.spec, self.preprocess.image_size)


def load(
    path: str | epath.Path,
    *,
    dtype: str | None = None,
    ema: bool = False,
    mesh: Mesh | None = None,
) -> Any:
    """The trained model of a checkpoint, in evaluation mode; the optimizer is not read.

    Args:
      path: a work directory (its newest checkpoint), its checkpoints folder or a step's folder.
      dtype: of the computation, "float32" or "bfloat16"; default: as it was trained.
      ema: the moving average of the weights instead of the weights themselves.
      mesh: of `dist.mesh.make_mesh`, over which the parameters are divided by its rules: each
        process reads the parts that its devices hold. Default: the first device has them all.

    Raises:
      UserError: no checkpoint there, one of a newer version, or one without a moving average.
      DamagedError: it cannot be read, or its bits have changed.
    """
    return load_described(path, dtype=dtype, ema=ema, mesh=mesh).model


def load_described(
    path: str | epath.Path,
    *,
    dtype: str | None = None,
    ema: bool = False,
    mesh: Mesh | None = None,
) -> Loaded:
    """As `load`, with the rest of the description."""
    about = description(path)
    spec = about.spec if dtype is None else dataclasses.replace(about.spec, dtype=dtype)

    def make() -> Any:
        return models.build(
            spec,
            num_classes=about.num_classes,
            image_size=about.preprocess.image_size,
            preprocess=about.preprocess,
            rngs=nnx.Rngs(0),
        )

    graph, variables = nnx.split(nnx.eval_shape(make), nnx.Param)
    layout = nnx.to_pure_dict(variables) if mesh is None else parameters.layout(variables, mesh)
    params = step_folder.restore_params(about.folder, layout, ema=ema)
    return Loaded(
        model=nnx.merge(graph, params),
        name=about.name,
        class_names=about.class_names,
        step=about.step,
    )


def description(path: str | epath.Path) -> Description:
    """What the checkpoint of `path`, as in `load`, says about itself.

    Raises:
      UserError: no checkpoint there, or one of a newer version.
    """
    folder = step_folder.find(path)
    about = step_folder.read_description(folder)
    if about.get("format_version") != FORMAT_VERSION:
        raise UserError(
            f"{folder} has format version {about.get('format_version')}, this vit_jax reads "
            f"{FORMAT_VERSION}: install the version that wrote it."
        )
    fields = dict(about["model"])
    names, name = about["class_names"], fields.pop("name")
    return Description(
        folder=folder,
        name=name,
        spec=models.spec_of_json(name, fields),
        num_classes=about["num_classes"],
        class_names=tuple(names) if names else None,
        preprocess=models.Preprocess(**{k: _tuples(v) for k, v in about["preprocess"].items()}),
        shapes={name: tuple(array["shape"]) for name, array in about["arrays"].items()},
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
