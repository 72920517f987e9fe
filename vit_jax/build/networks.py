"""The model of a run, and what its checkpoints say about it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flax import nnx

from vit_jax import models
from vit_jax.build.inputs import image_size
from vit_jax.config import RunConfig
from vit_jax.core import errors, opstring
from vit_jax.weights.checkpoint import describe

if TYPE_CHECKING:
    from vit_jax.data.example import Source


@dataclasses.dataclass(frozen=True)
class Model:
    """A model that is not built yet.

    Attributes:
      make: nnx.Rngs -> module.
      info: its name, parameters, FLOPs and fields.
      preprocess: what prediction makes of an image, and so the size of its images.
    """

    make: Callable[[nnx.Rngs], nnx.Module]
    info: models.ModelInfo
    preprocess: models.Preprocess


def model(config: RunConfig, *, num_classes: int) -> Model:
    """The model of the run; names and sizes are checked now."""
    prepared = preprocess(config)
    fields = {k: v for k, v in dataclasses.asdict(config.model).items() if v is not None}
    arguments: dict[str, Any] = {
        "num_classes": num_classes,
        "image_size": prepared.image_size,
        **fields,
    }
    name = arguments.pop("name")
    return Model(
        make=lambda rngs: models.create(name, rngs=rngs, preprocess=prepared, **arguments),
        info=models.info(name, **arguments),
        preprocess=prepared,
    )


def preprocess(config: RunConfig) -> models.Preprocess:
    """How images are to be prepared for prediction: as the first evaluation prepares them.

    Without an evaluation, the whole image stands for the random crops of training.
    """
    size = image_size(config.input.preprocess, "input.preprocess")
    resize: tuple[int, int] | int | None = None
    crop = None
    for name, c in list(config.evals.items())[:1]:
        for call in opstring.parse(c.preprocess, field=f"evals.{name}.preprocess"):
            wanted = call.argument(0, "size")
            if call.name in ("resize", "resize_small") and resize is crop is None:
                resize = wanted if call.name == "resize_small" else _pair(wanted)
            elif call.name == "central_crop" and crop is None:
                crop = _pair(wanted)
            elif call.name != "decode":
                raise errors.UserError(
                    f"evals.{name}.preprocess={c.preprocess!r} is the first evaluation's, which "
                    "prediction repeats; it can: decode, then resize or resize_small or neither, "
                    "then central_crop or not."
                )
    if resize is crop is None:
        resize = size
    return models.Preprocess(size, resize, crop, config.input.mean, config.input.std)


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size


def description(model: Model, source: Source) -> dict[str, Any]:
    """What the run's checkpoints say about themselves."""
    return describe(
        model.info,
        num_classes=source.num_classes,
        class_names=source.class_names,
        preprocess=model.preprocess,
    )
