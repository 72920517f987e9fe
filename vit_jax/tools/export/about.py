"""What a program needs to know about a model beside its weights."""

import dataclasses
from typing import Any

import jax

import vit_jax
from vit_jax.weights import Loaded


def about(loaded: Loaded) -> dict[str, Any]:
    """Class names, how images are prepared, versions: for about.json, or a file's metadata."""
    model = loaded.model
    return {
        "model": loaded.name,
        "gives": "logits" if model.num_classes else "features",
        "num_classes": model.num_classes,
        "class_names": loaded.class_names,
        "preprocess": dataclasses.asdict(model.preprocess),
        "made_with": {"vit_jax": vit_jax.__version__, "jax": jax.__version__},
    }
