"""A checkpoint's metadata and arrays."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from etils import epath

from vit_jax import models
from vit_jax.core.errors import UserError
from vit_jax.core.schema import renamed
from vit_jax.nn.posemb import TokenLayout
from vit_jax.store import checkpoint_dir
from vit_jax.weights.external import ExternalWeights

FORMAT_VERSION = 1  # version of the metadata that this code writes and reads


@dataclasses.dataclass(frozen=True)
class CheckpointInfo:
    """The model in a checkpoint, or in another project's file; no array is read.

    Attributes:
      folder: the step's folder, or the file.
      name: the model's name, such as "ViT-B/16".
      spec: the model's fields.
      preprocess: how prediction prepares images.
      shapes: shapes of arrays by name; parameters are under "params/", their EMA under "ema/".
      external: the contents of another project's file; None for a checkpoint of this one.
    """

    folder: epath.Path
    name: str
    spec: Any
    num_classes: int
    class_names: tuple[str, ...] | None
    preprocess: models.Preprocess
    shapes: dict[str, tuple[int, ...]]
    external: ExternalWeights | None = None

    @property
    def step(self) -> int:
        """The number of updates done; 0 for other projects' files, which do not state it."""
        return 0 if self.external else int(self.folder.name)

    @property
    def tokens(self) -> TokenLayout:
        """The origin of each of the model's tokens."""
        return models.token_layout(self.spec, self.preprocess.image_size)

    def param_shapes(self, *, ema: bool) -> dict[str, tuple[int, ...]]:
        """Shapes of the parameters or their EMA. UserError if there is no EMA."""
        under = self._under(ema) + "/"
        return {n.removeprefix(under): s for n, s in self.shapes.items() if n.startswith(under)}

    def read(
        self, layout: Mapping[str, jax.ShapeDtypeStruct], *, ema: bool
    ) -> dict[str, jax.Array]:
        """Parameters with these names, verified where there are checksums; no others are read.

        Args:
          layout: shapes as in `param_shapes`; arrays without a sharding go to the first device.
          ema: the EMA instead of the parameters.

        Raises:
          UserError: there is no EMA.
          DamagedError: the checkpoint cannot be read, or its bits have changed.
        """
        under = self._under(ema)
        if self.external:
            return {name: _placed(self.external.array(name), x) for name, x in layout.items()}
        arrays = checkpoint_dir.read_some(
            self.folder, {f"{under}/{n}": x for n, x in layout.items()}
        )
        return {name: arrays[f"{under}/{name}"] for name in layout}

    def _under(self, ema: bool) -> str:
        if self.external and ema:
            raise UserError(f"{self.folder} has no moving average (EMA): it is one set of weights.")
        return (
            checkpoint_dir.PARAMS
            if self.external
            else checkpoint_dir.params_or_ema(self.folder, ema=ema)
        )


def _placed(array: np.ndarray, x: jax.ShapeDtypeStruct) -> jax.Array:
    if x.sharding is None:
        return jax.device_put(array, jax.local_devices()[0])
    return jax.make_array_from_callback(array.shape, x.sharding, lambda index: array[index])


def read_info(path: str | epath.Path) -> CheckpointInfo:
    """Metadata of the checkpoint at `path`.

    path: a work directory (its newest checkpoint), its checkpoints folder or a step's folder.

    Raises:
      UserError: no checkpoint there, or one of a newer version.
    """
    folder = checkpoint_dir.find(path)
    about = checkpoint_dir.read_description(folder)
    if about.get("format_version") != FORMAT_VERSION:
        raise UserError(
            f"{folder} has format version {about.get('format_version')}, this vit_jax reads "
            f"{FORMAT_VERSION}: install the version that wrote it."
        )
    fields = renamed.fields(about)["model"]
    names, name = about["class_names"], fields.pop("name")
    return CheckpointInfo(
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
    """A checkpoint's metadata as JSON: all that `load` and prediction need."""
    return {
        "format_version": FORMAT_VERSION,
        "model": {"name": info.name, **info.spec},
        "num_classes": num_classes,
        "class_names": list(class_names) if class_names else None,
        "preprocess": dataclasses.asdict(preprocess),
    }


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
