"""The real training step, compiled: for devices that are there, or for TPUs that are not."""

from __future__ import annotations

import re
import time
from typing import Any, NamedTuple

from jax.sharding import Mesh

from vit_jax import build, step
from vit_jax.config import RunConfig
from vit_jax.dist.hlo import instructions
from vit_jax.state import Layout

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')


class CompiledStep(NamedTuple):
    """A compiled step and what it was made from."""

    compiled: Any
    layout: Layout
    batch: step.Batch
    forward_flops: int  # of one image
    compile_secs: float


def compile_step(config: RunConfig, mesh: Mesh) -> CompiledStep:
    """The step of a run whose number of classes is declared (input.num_classes)."""
    num_classes, batch_size = config.input.num_classes, config.input.batch_size
    assert num_classes is not None
    schedule = build.schedule(
        config.optim, build.plan(config, num_examples=config.input.num_examples or batch_size)
    )
    model = build.model(config, num_classes=num_classes)
    layout = build.layout(config, model.make, schedule, mesh)
    batch = step.batch_layout(
        mesh, batch_size=batch_size, image_size=model.preprocess.image_size, max_labels=1
    )
    update = step.make_update(
        layout,
        build.objective(config, num_classes=num_classes),
        build.rates(config.optim, schedule),
        config.seed,
    )
    started = time.perf_counter()
    compiled = step.compile_update(update, layout, batch)
    secs = time.perf_counter() - started
    return CompiledStep(compiled, layout, batch, model.info.forward_flops, secs)


def peak_bytes(memory: Any) -> int:
    """Of one device: the state and the batch, which a step is given, and what it takes besides."""
    new = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return int(memory.argument_size_in_bytes + memory.temp_size_in_bytes + new)


def mega_cycles(hlo: str) -> float:
    """The compiler's own estimates for a TPU, summed; it has none for collectives."""
    cycles = (
        one.runs * int(found[1])
        for one in instructions(hlo)
        if not one.fused and (found := _CYCLES.search(one.text))
    )
    return sum(cycles) / 1e6
