"""Planned and measured memory of a step, on a CPU with several simulated devices.

    XLA_FLAGS=--xla_force_host_platform_device_count=8 python -m benchmarks.planned_memory

Compiles the step as `vit-jax plan` does, then runs it a few times. Planned is the peak of one
device times their number. Measured is how far this process's resident memory rises during the steps
above its level before the state existed: state, batch, the steps' temporaries, and freed memory
that the C library keeps. What creating the state freed is returned first, being no part of a step.
Linux only. Appends a row to benchmarks/results/planned_memory.csv.
"""

import jax
import numpy as np
from absl import flags

from benchmarks import rows
from benchmarks.compiled_step import CompiledStep, compile_step
from benchmarks.costs import Memory
from vit_jax import config as configs
from vit_jax.core import command
from vit_jax.run.parts import inputs
from vit_jax.tools.plan.compiled import peak_bytes

_BATCH_SIZE = flags.DEFINE_integer("batch_size", 32, "Of all devices together.")
_STEPS = flags.DEFINE_integer("steps", 3, "How many to run.")

MIB = 2**20
BASE = {
    "model": {"name": "ViT-Ti/16"},
    "input": {"preprocess": "decode|resize(224)", "num_classes": 1000},
    "optim": {"weight_decay": 0.1},
    "total": {"steps": 1000},
}


def main(arguments: list[str]) -> None:
    """Measures, prints and records; `arguments` are fields of the config."""
    size = f"input.batch_size={_BATCH_SIZE.value}"
    config = configs.resolve(BASE, [size, *arguments])
    mesh = inputs.mesh(config.mesh)
    done = compile_step(config, mesh)
    take_steps(done, 1)  # compiles the initialisation, and whatever is compiled once
    measured = take_steps(done, _STEPS.value)
    analysis = done.compiled.memory_analysis()
    planned = mesh.size * peak_bytes(analysis)
    row = {
        "model": config.model.name,
        "settings": " ".join(arguments),
        "batch_size": config.input.batch_size,
        "devices": mesh.size,
        "temporary_mib": round(mesh.size * analysis.temp_size_in_bytes / MIB, 1),
        "planned_mib": round(planned / MIB, 1),
        "measured_mib": round(measured / MIB, 1),
        "measured_to_planned": round(measured / planned, 3),
    }
    rows.record("planned_memory", "vit_jax", "jax", row)


def take_steps(done: CompiledStep, number: int) -> int:
    """Takes steps from a fresh state; returns the largest rise of resident memory, in bytes."""
    memory = Memory()
    state = jax.block_until_ready(done.layout.init(0))
    draw = np.random.default_rng(0).integers
    batch = {
        name: jax.device_put(draw(0, 2, x.shape).astype(x.dtype), x.sharding)
        for name, x in done.batch.items()
    }
    jax.block_until_ready(batch)
    Memory()  # returns freed memory and restarts the peak
    for _ in range(number):
        state, _ = jax.block_until_ready(done.compiled(state, batch))
    return memory.risen_bytes()


if __name__ == "__main__":
    command.run(main, positional=True)
