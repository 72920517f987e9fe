"""Whether a step takes the memory that a plan says: on a CPU, as several simulated devices.

    XLA_FLAGS=--xla_force_host_platform_device_count=8 python -m benchmarks.planned_memory

Compiles the step as `vit_jax.plan` does, then runs it a few times. Planned is the peak of a device
times the number of devices. Measured is how far this process's resident memory rises during the
steps above what it was before there was a state: state, batch, the steps' temporaries, and whatever
the C library keeps of what they have freed. It has to give back first what making the state has
freed, which is no part of a step. Linux alone.
Appends a row to benchmarks/results/planned_memory.csv.
"""

from __future__ import annotations

import jax
import numpy as np
from absl import flags

from benchmarks import rows
from benchmarks.compiled_step import CompiledStep, compile_step
from benchmarks.resident import Memory
from vit_jax import config as configs
from vit_jax.core import command
from vit_jax.plan.compiled import peak_bytes
from vit_jax.run import build

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
    """Measures, prints and records; arguments: fields of the config."""
    size = f"input.batch_size={_BATCH_SIZE.value}"
    config = configs.resolve(BASE, [size, *arguments])
    mesh = build.mesh(config.mesh)
    done = compile_step(config, mesh)
    take_steps(done, 1)  # compiles what makes the state, and whatever is made once
    measured = take_steps(done, _STEPS.value)
    analysis = done.compiled.memory_analysis()
    planned = mesh.size * peak_bytes(analysis)
    row = {
        "commit": rows.commit("vit_jax"),
        "device": rows.cpu(),
        "versions": rows.versions("jax"),
        "model": config.model.name,
        "settings": " ".join(arguments),
        "batch_size": config.input.batch_size,
        "devices": mesh.size,
        "temporary_mib": round(mesh.size * analysis.temp_size_in_bytes / MIB, 1),
        "planned_mib": round(planned / MIB, 1),
        "measured_mib": round(measured / MIB, 1),
        "measured_to_planned": round(measured / planned, 3),
    }
    print(row)
    rows.append("planned_memory", row)


def take_steps(done: CompiledStep, number: int) -> int:
    """Takes steps from a fresh state; returns by how many bytes resident memory rose at most."""
    memory = Memory()
    state = jax.block_until_ready(done.layout.init(0))
    draw = np.random.default_rng(0).integers
    batch = {
        name: jax.device_put(draw(0, 2, x.shape).astype(x.dtype), x.sharding)
        for name, x in done.batch.items()
    }
    jax.block_until_ready(batch)
    Memory()  # gives back what that has freed, and starts the peak anew
    for _ in range(number):
        state, _ = jax.block_until_ready(done.compiled(state, batch))
    return memory.risen_bytes()


if __name__ == "__main__":
    command.run(main)
