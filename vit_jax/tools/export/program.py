"""A program in StableHLO, for JAX without this package."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax import export as jax_export

from vit_jax.core import __version__, cloud, pytrees
from vit_jax.core.errors import writing
from vit_jax.core.files import atomic_folder
from vit_jax.models.head import has_sigmoids
from vit_jax.models.layers.kernels import choice
from vit_jax.store.workdir import check_output
from vit_jax.weights import Loaded
from vit_jax.weights.files import from_array, npz


def about(loaded: Loaded) -> dict[str, Any]:
    """Classes, preparation of images and versions, for about.json or a file's metadata."""
    model = loaded.model
    return {
        "model": loaded.name,
        "gives": "logits" if model.num_classes else "features",
        "num_classes": model.num_classes,
        "class_names": loaded.class_names,
        "thresholds": loaded.thresholds,
        "probabilities": "sigmoid" if has_sigmoids(model.spec) else "softmax",
        "preprocess": dataclasses.asdict(model.preprocess),
        "made_with": {"vit_jax": __version__, "jax": jax.__version__},
    }


def new_file(path: str | Path, to: str) -> Path:
    """The output file of --to, which must not exist yet and is named after it."""
    cloud.check_new(path)
    return Path(check_output(path, endings=(f".{to}",)))


PLATFORMS = ("cpu", "cuda", "rocm", "tpu")  # as jax.export calls them
INPUT = "images"
PROGRAM, ARRAYS, ABOUT = "program.jax_export", "weights.npz", "about.json"


def stablehlo(loaded: Loaded, folder: str | Path, platforms: Sequence[str]) -> None:
    """Writes the program, its weights and their metadata into a folder that must not exist yet.

    The program takes the weights, which are not part of it, as a dictionary of arrays by name, and
    images [B, H, W, 3], for any B. It gives logits [B, C], or features [B, D] of a model without a
    head.
    """
    folder = Path(folder).expanduser()
    cloud.check_new(folder)
    graph, state = nnx.split(loaded.model, nnx.Param)
    params = pytrees.flatten(nnx.to_pure_dict(state))
    forward = jax.jit(lambda p, x: nnx.merge(graph, pytrees.unflatten(p))(x))
    (batch,) = jax_export.symbolic_shape("batch")
    size, channels = loaded.model.preprocess.image_size, loaded.model.spec.channels
    images = jax.ShapeDtypeStruct((batch, *size, channels), np.float32)
    shapes = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in params.items()}
    with choice.portable():
        program = jax_export.export(forward, platforms=platforms)(shapes, images)
    with writing("--output", folder), atomic_folder(folder) as temporary:
        (temporary / PROGRAM).write_bytes(program.serialize())
        arrays = {name: from_array(np.asarray(x)) for name, x in params.items()}
        npz.write(temporary / ARRAYS, arrays)
        facts = about(loaded) | {
            "platforms": program.platforms,
            "calling_convention_version": program.calling_convention_version,
        }
        (temporary / ABOUT).write_text(json.dumps(facts, indent=2) + "\n")
