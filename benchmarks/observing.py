"""What memory and time it takes to look inside a model, image after image.

    python -m benchmarks.observing --model ViT-L/16 --image_size 384 --images 24

Of a model with random parameters and random images, on a CPU: rollout, distances, norms and one
query's attention in one pass (`--what look`), or relevance by gradients (`--what relevance`).
Images are made one by one, as files would be decoded. The peak is of the whole process: Python,
JAX, the compiler, the model and what is kept of each image. It should not depend on `--images`.
Linux only. Appends a row to benchmarks/results/observing.csv.
"""

import os
import time
from collections.abc import Iterator

import jax
import numpy as np
from absl import flags
from flax import nnx

from benchmarks import rows
from benchmarks.costs import Memory
from vit_jax import models
from vit_jax.core import command, pytrees
from vit_jax.models import observe

_MODEL = flags.DEFINE_string("model", "ViT-L/16", "Its name.")
_IMAGE_SIZE = flags.DEFINE_integer("image_size", 384, "In pixels.", lower_bound=1)
_IMAGES = flags.DEFINE_integer("images", 24, "How many.", lower_bound=1)
_WHAT = flags.DEFINE_enum("what", "look", ["look", "relevance"], "A pass, or gradients.")

GIB = 2**30


def main(_: list[str]) -> None:
    """Measures, prints and records."""
    size = _IMAGE_SIZE.value
    create = lambda: models.create(
        _MODEL.value, num_classes=1000, image_size=size, rngs=nnx.Rngs(0)
    )  # fmt: skip
    model = jax.block_until_ready(nnx.jit(create)())
    memory = Memory()  # what creating the model freed is no part of looking into it
    began, cpu_began = time.perf_counter(), time.process_time()
    if _WHAT.value == "look":
        reducers = (
            observe.Rollout(), observe.Distances(), observe.TokenNorms(), observe.FromQuery((0, 0)),
        )  # fmt: skip
        observe.look(model, images(_IMAGES.value, size), reducers)
    else:
        observe.relevance(model, images(_IMAGES.value, size))
    row = {
        "model": _MODEL.value,
        "image_size": size,
        "what": _WHAT.value,
        "images": _IMAGES.value,
        "chunk": observe.chunks.chunk_size(model),
        "parameters_gib": round(4 * pytrees.num_elements(nnx.state(model, nnx.Param)) / GIB, 3),
        "peak_gib": round((memory.before_bytes + memory.risen_bytes()) / GIB, 3),
        "seconds": round(time.perf_counter() - began, 1),
        "cpu_seconds": round(time.process_time() - cpu_began, 1),
        "load_average": round(os.getloadavg()[0], 1),
    }
    rows.record("observing", "vit_jax/models vit_jax/probes", "jax", row)


def images(number: int, size: int) -> Iterator[np.ndarray]:
    """One [size, size, 3] float32 after the other."""
    draw = np.random.default_rng(0).standard_normal
    for _ in range(number):
        yield draw((size, size, 3), np.float32)


if __name__ == "__main__":
    command.run(main)
