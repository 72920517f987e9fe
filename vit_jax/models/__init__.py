"""Floor 2: models by name: `create("ViT-B/16", num_classes=1000, image_size=224, rngs=...)`."""

from vit_jax.models.names import ModelInfo, available, create, info, spec
from vit_jax.models.preprocess import Preprocess
from vit_jax.models.vit import ARCHITECTURE

__all__ = ["ARCHITECTURE", "ModelInfo", "Preprocess", "available", "create", "info", "spec"]
