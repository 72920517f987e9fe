"""Time and memory with scanned and with unrolled blocks, under each remat policy.

    python -m benchmarks.scan_or_unrolled --model ViT-Ti/16 --batch_size 8

Compiles the real training step of every variant; they then take turns on the available devices, and
the median time of a step is reported. (For TPUs, without having any:
benchmarks/compiled_for_tpu.py.) Appends a row for each variant to
benchmarks/results/scan_or_unrolled.csv.
"""

import statistics
import time

import jax
import numpy as np
from absl import flags

from benchmarks import rows
from benchmarks.compiled_step import CompiledStep, compile_step
from vit_jax import config as configs
from vit_jax.core import command
from vit_jax.models.layers.stack import REMAT_POLICIES
from vit_jax.run.parts import inputs

_MODEL = flags.DEFINE_string("model", "ViT-Ti/16", "Name of the model.")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 8, "Global batch size.")
_DTYPE = flags.DEFINE_enum("dtype", "float32", ["float32", "bfloat16"], "model.dtype.")
_IMAGE_SIZE = flags.DEFINE_integer("image_size", 224, "Pixels, both sides.")
_NUM_CLASSES = flags.DEFINE_integer("num_classes", 1000, "Of the head.")
_REMATS = flags.DEFINE_multi_enum("remat", list(REMAT_POLICIES), list(REMAT_POLICIES), "Which.")
_ROUNDS = flags.DEFINE_integer("rounds", 5, "Steps of each variant that are measured.")

Variant = tuple[bool, str]  # scan, remat


def main(_: list[str]) -> None:
    """Measures, prints and records."""
    mesh = inputs.mesh(configs.MeshConfig())
    variants = {
        (scan, remat): compile_step(_config(scan, remat), mesh)
        for remat in _REMATS.value
        for scan in (False, True)
    }
    times = _step_secs(variants)
    kind = mesh.devices.flat[0].device_kind
    for (scan, remat), done in variants.items():
        row = {
            "model": _MODEL.value,
            "dtype": _DTYPE.value,
            "image_size": _IMAGE_SIZE.value,
            "batch_size": _BATCH_SIZE.value,
            "scan": scan,
            "remat": remat,
            "compile_secs": round(done.compile_secs, 1),
            "step_ms": round(1e3 * times[scan, remat], 1),
            "temp_mib": round(done.compiled.memory_analysis().temp_size_in_bytes / 2**20, 1),
        }
        device = None if kind == "cpu" else f"{mesh.size} x {kind}"
        rows.record("scan_or_unrolled", "vit_jax", "jax", row, device=device)


def _config(scan: bool, remat: str) -> configs.RunConfig:
    size = _IMAGE_SIZE.value
    return configs.resolve(
        {
            "model": {"name": _MODEL.value, "dtype": _DTYPE.value, "scan": scan, "remat": remat},
            "input": {
                "preprocess": f"decode|resize({size})",
                "batch_size": _BATCH_SIZE.value,
                "num_classes": _NUM_CLASSES.value,
            },
            "optim": {"weight_decay": 0.1},
            "total": {"steps": 1000},
        }
    )


def _step_secs(variants: dict[Variant, CompiledStep]) -> dict[Variant, float]:
    """Median seconds of a step; the variants take turns."""
    secs: dict[Variant, list[float]] = {variant: [] for variant in variants}
    first = next(iter(variants.values()))
    layout = first.layout
    state = layout.init(0)  # shared by all: each takes a step with them
    batch = {
        name: jax.device_put(np.zeros(x.shape, x.dtype), x.sharding)
        for name, x in first.batch.items()
    }
    jax.block_until_ready((state, batch))
    for turn in range(1 + _ROUNDS.value):
        for variant, done in variants.items():
            state = done.layout.unstack_layers(layout.stack_layers(state))
            layout = done.layout
            started = time.perf_counter()
            state, _ = jax.block_until_ready(done.compiled(state, batch))
            if turn:  # the first is slower
                secs[variant].append(time.perf_counter() - started)
    return {variant: statistics.median(values) for variant, values in secs.items()}


if __name__ == "__main__":
    command.run(main)
