"""Trained models from files: `weights.load("runs/digits")`, `weights.load("B_16.npz")`."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    from vit_jax.weights.saving import check_output, save
    from vit_jax.weights.zero_shot import with_labels

__all__ = [
    "CheckpointInfo", "LazyModel", "Loaded", "Options", "check_head", "check_name", "check_output",
    "checkpoint_info", "fetch", "is_external", "is_name", "load", "load_with_info",
    "names_of_classes", "open_model", "save", "with_class_names", "with_labels",
]  # fmt: skip
_MODULES = {
    "check_name": "online", "check_output": "saving", "fetch": "online", "is_name": "online",
    "save": "saving", "with_labels": "zero_shot",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """The names above, imported with their first use: most trainings read no weights (PEP 562)."""
    if name in __all__:
        module = importlib.import_module(f"{__name__}.{_MODULES.get(name, 'loading')}")
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
