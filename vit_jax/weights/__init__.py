"""Trained models from files. `weights.load("runs/digits")`, `weights.load("B_16.npz")`."""

from vit_jax.weights.class_names import check_head, names_of_classes, with_class_names
from vit_jax.weights.loading import (
    CheckpointInfo,
    Found,
    Loaded,
    checkpoint_info,
    find,
    is_external,
    load,
    load_with_info,
)
from vit_jax.weights.online.fetching import check_name, fetch, is_name
from vit_jax.weights.saving import save

__all__ = [
    "CheckpointInfo", "Found", "Loaded", "check_head", "check_name", "checkpoint_info", "fetch",
    "find", "is_external", "is_name", "load", "load_with_info", "names_of_classes", "save",
    "with_class_names",
]  # fmt: skip
