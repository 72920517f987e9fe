"""A file of LiteRT (TensorFlow Lite), by TensorFlow's own converter."""

import json
import math
import os
import zipfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vit_jax.core import pytrees
from vit_jax.core.errors import writing
from vit_jax.core.files import atomic_file
from vit_jax.models.layers.block import Mlp
from vit_jax.models.layers.kernels import choice
from vit_jax.models.layers.stack import Stack
from vit_jax.tools.export.program import ABOUT, INPUT, about, new_file
from vit_jax.weights import Loaded

EXACT = {"approximate": False}  # what jax.nn.gelu is called with
ERFC = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)


def save(loaded: Loaded, path: str | Path, batch_size: int) -> None:
    """Writes a model as a LiteRT file, which must not exist yet.

    It takes `images` [batch_size, H, W, 3] float32, normalised, and gives `logits`, or `features`
    of a model without a head, by LiteRT's own operators alone. A zip archive at the file's end, as
    LiteRT's metadata have it, holds about.json.
    """
    path = new_file(path, "tflite")
    facts = about(loaded) | {"batch_size": batch_size}
    content = _converted(loaded.model, facts["gives"], batch_size)
    with writing("--output", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as temporary:
            temporary.write_bytes(content)
            with zipfile.ZipFile(temporary, "a") as archive:
                archive.writestr(ABOUT, json.dumps(facts, indent=2) + "\n")


def _converted(model: Any, result: str, batch_size: int) -> bytes:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # its notes for its own developers
    import tensorflow as tf
    from jax.experimental import jax2tf

    structure, state = nnx.split(model, nnx.Param)
    # Layer by layer: the converter takes long to cut stacks.
    params = pytrees.unstack_layers(jax.tree.map(np.asarray, nnx.to_pure_dict(state)), list)
    program = jax2tf.convert(
        lambda p, x: _convertible(nnx.merge(structure, pytrees.group_layers(p)))(x),
        native_serialization_platforms=("cpu",),
        with_gradient=False,
    )
    variables = jax.tree.map(tf.Variable, params)
    module = tf.Module()
    module.all = jax.tree.leaves(variables)
    shape = (batch_size, *model.preprocess.image_size, model.spec.channels)
    function = tf.function(
        lambda images: {result: program(variables, images)},
        input_signature=[tf.TensorSpec(shape, tf.float32, name=INPUT)],
        autograph=False,
    )
    with choice.portable():
        concrete = function.get_concrete_function()
    with writing("--to", "tflite"):
        return tf.lite.TFLiteConverter.from_concrete_functions([concrete], module).convert()


def _convertible(model: Any) -> Any:
    """Removes loops, and JAX's erfc, which TensorFlow 2.21 cannot read."""
    for _, module in nnx.iter_modules(model):
        if isinstance(module, Stack):
            module.run = Stack.unroll
        if isinstance(module, Mlp) and getattr(module.activation, "keywords", None) == EXACT:
            module.activation = _exact_gelu
    return model


def _exact_gelu(x: Any) -> jax.Array:
    """GELU by basic operations; erfc by Abramowitz and Stegun's 7.1.26, to 1.5e-7."""
    t = 1 / (1 + 0.3275911 * math.sqrt(0.5) * jnp.abs(x))
    erfc = sum(a * t**k for k, a in enumerate(ERFC, 1)) * jnp.exp(-0.5 * x * x)
    return jnp.maximum(x, 0) - 0.5 * jnp.abs(x) * erfc
