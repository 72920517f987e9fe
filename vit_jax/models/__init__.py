"""Models by name, as `create("ViT-B/16", num_classes=1000, image_size=224, rngs=...)`."""

from vit_jax.models.names import (
    ModelInfo,
    architecture,
    available,
    build,
    config_fields,
    create,
    hidden_fields,
    info,
    spec,
    spec_of_json,
    token_layout,
)
from vit_jax.models.preprocess import INTERPOLATIONS, Preprocess

__all__ = [
    "INTERPOLATIONS", "ModelInfo", "Preprocess", "architecture", "available", "build",
    "config_fields", "create", "hidden_fields", "info", "spec", "spec_of_json", "token_layout",
]  # fmt: skip
