"""Models by name, as `create("ViT-B/16", num_classes=1000, image_size=224, rngs=...)`."""

from vit_jax.models.family import INTERPOLATIONS, Preprocess
from vit_jax.models.names import (
    ModelInfo,
    architecture,
    available,
    build,
    config_fields,
    create,
    hidden_fields,
    info,
    kind,
    spec,
    spec_of_json,
)

__all__ = [
    "INTERPOLATIONS", "ModelInfo", "Preprocess", "architecture", "available", "build",
    "config_fields", "create", "hidden_fields", "info", "kind", "spec", "spec_of_json",
]  # fmt: skip
