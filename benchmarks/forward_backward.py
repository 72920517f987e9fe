"""Time of models' forward and backward passes, over that of the first.

    python -m benchmarks.forward_backward --models ViT-S/16,Axial-ViT-S/16 --batch_size 4

The gradients of a loss by all parameters, compiled; the models take turns on the available device,
and medians are reported. Appends a row for each model to benchmarks/results/forward_backward.csv.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from absl import flags
from flax import nnx

from benchmarks import rows
from vit_jax import models
from vit_jax.core import command

_MODELS = flags.DEFINE_list("models", ["ViT-S/16", "Axial-ViT-S/16"], "Names; ratios to the first.")
_FIELDS = flags.DEFINE_multi_string("field", [], "Of all models that have it, such as pool=avg.")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 4, "Images.")
_DTYPE = flags.DEFINE_enum("dtype", "float32", ["float32", "bfloat16"], "model.dtype.")
_IMAGE_SIZE = flags.DEFINE_integer("image_size", 224, "Pixels, both sides.")
_ROUNDS = flags.DEFINE_integer("rounds", 7, "Passes of each model that are measured.")
_RECORD = flags.DEFINE_boolean("record", True, "Append rows.")


def main(_: list[str]) -> None:
    """Measures, prints and records."""
    fields = dict(text.partition("=")[::2] for text in _FIELDS.value)
    passes = {name: _pass(name, fields) for name in _MODELS.value}
    secs: dict[str, list[float]] = {name: [] for name in passes}
    for turn in range(1 + _ROUNDS.value):
        for name, one in passes.items():
            started = time.perf_counter()
            jax.block_until_ready(one())
            if turn:  # the first compiles
                secs[name].append(time.perf_counter() - started)
    median = {name: statistics.median(times) for name, times in secs.items()}
    device = jax.devices()[0].device_kind
    for name in passes:
        info = models.info(name, image_size=_IMAGE_SIZE.value, **_known(name, fields))
        row = {
            "model": name,
            "dtype": _DTYPE.value,
            "image_size": _IMAGE_SIZE.value,
            "batch_size": _BATCH_SIZE.value,
            "rounds": _ROUNDS.value,
            "parameters": info.parameters,
            "forward_gflops": round(info.forward_flops / 1e9, 2),
            "pass_ms": round(1e3 * median[name], 1),
            "over_the_first": round(median[name] / median[_MODELS.value[0]], 3),
            "fastest_over_the_first": round(min(secs[name]) / min(secs[_MODELS.value[0]]), 3),
        }
        rows.record(
            "forward_backward",
            "vit_jax",
            "jax",
            row,
            device=None if device == "cpu" else device,
            keep=_RECORD.value,
        )


def _known(name: str, fields: dict[str, str]) -> dict[str, str]:
    """The fields that this model has."""
    spec = models.spec(name)
    return {field: value for field, value in fields.items() if hasattr(spec, field)}


def _pass(name: str, fields: dict[str, str]) -> Callable[[], Any]:
    """Computes a loss and its gradients by all parameters."""
    size = _IMAGE_SIZE.value
    make = lambda: models.create(
        name,
        num_classes=1000,
        image_size=size,
        dtype=_DTYPE.value,
        rngs=nnx.Rngs(0),
        **_known(name, fields),
    )
    graph, params = nnx.split(nnx.jit(make)(), nnx.Param)

    @jax.jit
    def run(params: Any, images: jax.Array) -> Any:
        def loss(params: Any) -> jax.Array:
            return -jax.nn.log_softmax(nnx.merge(graph, params)(images))[:, 0].mean()

        return jax.value_and_grad(loss)(params)

    images = jax.random.normal(jax.random.key(0), (_BATCH_SIZE.value, size, size, 3), jnp.float32)
    return lambda: run(params, images)


if __name__ == "__main__":
    command.run(main)
