"""Exporting a model: python -m vit_jax.export --checkpoint runs/digits --output digits_hf

--to=huggingface writes a folder that transformers loads; --to=stablehlo a program that JAX runs
without this package, on any of the platforms it was made for; see docs/export.md.
"""

from absl import flags

from vit_jax.core import command

if __name__ == "__main__":  # --help and a mistake do not wait for the imports below
    flags.DEFINE_string("checkpoint", None, "Work directory, or a step's folder; or other weights.")
    flags.DEFINE_string("output", None, "A folder; not there yet.")
    flags.DEFINE_enum(
        "to",
        "huggingface",
        ("huggingface", "stablehlo"),
        "For transformers, or a program for JAX.",
    )
    flags.DEFINE_bool("ema", False, "The EMA of the weights, if the run kept one.")
    flags.DEFINE_enum("head", "keep", ("keep", "drop"), "Whether to keep the classification layer.")
    flags.DEFINE_enum(
        "dtype", None, ("float32", "bfloat16"), "Of stablehlo: type of the computation."
    )
    flags.DEFINE_list("platforms", ["cpu", "cuda", "tpu"], "Of stablehlo: platforms to run on.")
    flags.mark_flags_as_required(["checkpoint", "output"])
    command.parse()

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax import export as jax_export

import vit_jax
from vit_jax import weights
from vit_jax.core import pytrees
from vit_jax.core.errors import UserError, nearest
from vit_jax.core.files import atomic_folder
from vit_jax.nn.kernels import choice
from vit_jax.weights import Loaded
from vit_jax.weights.files import npz
from vit_jax.weights.files.tensors import of_array

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")  # as jax.export calls them
PROGRAM, ARRAYS, ABOUT = "program.jax_export", "weights.npz", "about.json"
FLAGS = flags.FLAGS


def stablehlo(loaded: Loaded, folder: str | Path, platforms: Sequence[str]) -> None:
    """Writes the program, its weights and their metadata into a folder that must not exist yet.

    The program takes the weights as a dictionary of arrays by name and images [B, H, W, 3], for any
    B, and gives logits [B, C], or features [B, D] of a model without a head. The weights are not
    part of the program, so that it stays small and takes others.

    Raises:
      UserError: the folder is there, or cannot be written; or an unknown platform.
    """
    folder = Path(folder)
    for platform in platforms:
        if platform not in PLATFORMS:
            raise UserError(f"--platforms: {platform!r}. {nearest(platform, PLATFORMS)}")
    if os.path.lexists(folder):
        raise UserError(f"{folder} is there already: give another output, or delete it.")
    graph, state = nnx.split(loaded.model, nnx.Param)
    params = pytrees.flatten(nnx.to_pure_dict(state))
    forward = jax.jit(lambda p, x: nnx.merge(graph, pytrees.unflatten(p))(x))
    (batch,) = jax_export.symbolic_shape("batch")
    images = jax.ShapeDtypeStruct((batch, *loaded.model.preprocess.image_size, 3), np.float32)
    shapes = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in params.items()}
    with choice.portable():
        program = jax_export.export(forward, platforms=platforms)(shapes, images)
    try:
        with atomic_folder(folder) as temporary:
            (temporary / PROGRAM).write_bytes(program.serialize())
            arrays = {name: of_array(np.asarray(x)) for name, x in params.items()}
            npz.write(temporary / ARRAYS, arrays)
            (temporary / ABOUT).write_text(json.dumps(_about(loaded, program), indent=2) + "\n")
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error}.") from error


def _about(loaded: Loaded, program: jax_export.Exported) -> dict[str, Any]:
    model = loaded.model
    return {
        "model": loaded.name,
        "gives": "logits" if model.num_classes else "features",
        "num_classes": model.num_classes,
        "class_names": loaded.class_names,
        "preprocess": dataclasses.asdict(model.preprocess),
        "platforms": program.platforms,
        "calling_convention_version": program.calling_convention_version,
        "made_with": {"vit_jax": vit_jax.__version__, "jax": jax.__version__},
    }


def main(_: list[str]) -> None:
    """The command."""
    loaded = weights.load_with_info(
        FLAGS.checkpoint, ema=FLAGS.ema, head=FLAGS.head, dtype=FLAGS.dtype
    )
    loaded, notice = weights.with_class_names(loaded)
    if FLAGS.to == "huggingface":
        weights.save(loaded, FLAGS.output, "huggingface")
    else:
        stablehlo(loaded, FLAGS.output, FLAGS.platforms)
    height, width = loaded.model.preprocess.image_size
    print(f"{loaded.name}, images of {height} x {width} pixels: {FLAGS.output}")
    if notice:
        print(notice)


if __name__ == "__main__":
    command.run(main)
