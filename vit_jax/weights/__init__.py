"""Trained models from files: `weights.load("runs/digits")`, `weights.load("B_16.npz")`."""

from vit_jax.weights.loading import (
    CheckpointInfo,
    LazyModel,
    Loaded,
    Options,
    check_head,
    checkpoint_info,
    is_external,
    load,
    load_with_info,
    names_of_classes,
    open_model,
    with_class_names,
)
from vit_jax.weights.online import check_name, fetch, is_name
from vit_jax.weights.saving import save

__all__ = [
    "CheckpointInfo", "LazyModel", "Loaded", "Options", "check_head", "check_name",
    "checkpoint_info", "fetch", "is_external", "is_name", "load", "load_with_info",
    "names_of_classes", "open_model", "save", "with_class_names",
]  # fmt: skip
