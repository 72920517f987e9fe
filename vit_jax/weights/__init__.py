"""Trained models from files. `weights.load("runs/digits")`, `weights.load("B_16.npz")`."""

from vit_jax.weights.loading import (
    CheckpointInfo,
    Loaded,
    checkpoint_info,
    is_external,
    load,
    load_with_info,
    with_class_names,
)
from vit_jax.weights.saving import save

__all__ = [
    "CheckpointInfo", "Loaded", "checkpoint_info", "is_external", "load", "load_with_info", "save",
    "with_class_names",
]  # fmt: skip
