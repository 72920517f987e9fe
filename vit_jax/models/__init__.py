"""Models by name, as `create("ViT-B/16", num_classes=1000, image_size=224, rngs=...)`."""

import importlib
from typing import Any

from vit_jax.models.family import INTERPOLATIONS, Family, Preprocess
from vit_jax.models.names import (
    ModelInfo,
    abstract,
    architecture,
    available,
    build,
    config_fields,
    create,
    find_family,
    forward_flops,
    hidden_fields,
    info,
    kind,
    spec,
    spec_of_json,
)

__all__ = [
    "INTERPOLATIONS", "Family", "ModelInfo", "Preprocess", "abstract", "architecture", "available",
    "build", "config_fields", "create", "find_family", "forward_flops", "hidden_fields", "info",
    "kind", "spec", "spec_of_json",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """`models.images`, with its first use."""
    if name == "images":
        return importlib.import_module(f"{__name__}.images")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
