"""The description of a checkpoint's model: as a run writes it, and as it is read again."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from vit_jax import models
from vit_jax.core.errors import UserError

FORMAT_VERSION = 1  # of a checkpoint's metadata that this code writes and reads
WITH_ADAPTERS = 2  # of one with adapters, whose kernels alone are not the model's


def describe(
    info: models.ModelInfo,
    *,
    num_classes: int,
    class_names: tuple[str, ...] | None,
    preprocess: models.Preprocess,
    adapter_scale: float | None = None,
    init_weights: str | None = None,
) -> dict[str, Any]:
    """A checkpoint's metadata as JSON: all that `load` and prediction need.

    `init_weights` is the pinned name of the weights that training began with.
    """
    of_adapters = {} if adapter_scale is None else {"adapter_scale": adapter_scale}
    return {
        "format_version": WITH_ADAPTERS if of_adapters else FORMAT_VERSION,
        **of_adapters,
        **({} if init_weights is None else {"init_weights": init_weights}),
        "model": {"name": info.name, **info.spec},
        "num_classes": num_classes,
        "class_names": list(class_names) if class_names else None,
        "preprocess": dataclasses.asdict(preprocess),
    }


def parse(about: Mapping[str, Any], *, origin: str) -> dict[str, Any]:
    """Parses what `describe` wrote, in any version, to fields of `loading.CheckpointInfo`."""
    if about.get("format_version") not in (FORMAT_VERSION, WITH_ADAPTERS):
        raise UserError(f"{origin} is of format version {about.get('format_version')}.")
    from vit_jax.core.schema import renamed

    fields = dict(renamed.fields(about)["model"])
    names, name = about["class_names"], fields.pop("name")
    images: dict[str, Any] = {
        field: tuple(x) if isinstance(x, list) else x for field, x in about["preprocess"].items()
    }
    try:
        spec, preprocess = models.spec_of_json(name, fields), models.Preprocess(**images)
    except TypeError as error:  # a field that a later version added
        raise UserError(f"{origin} is of a newer version of vit_jax: {error}") from error
    return {
        "name": name,
        "spec": spec,
        "num_classes": about["num_classes"],
        "class_names": tuple(names) if names else None,
        "preprocess": preprocess,
        "adapter_scale": about.get("adapter_scale"),
        "thresholds": about.get("thresholds"),
    }
