"""The training step of a config, compiled."""

import time
from typing import Any, NamedTuple

from jax.sharding import Mesh

from vit_jax.config import RunConfig
from vit_jax.plan.compiled import lower, planned_step
from vit_jax.training.state import StateLayout
from vit_jax.training.step import Batch


class CompiledStep(NamedTuple):
    """A compiled step and what it was compiled from."""

    compiled: Any
    layout: StateLayout
    batch: Batch
    forward_flops: int  # per image
    compile_secs: float


def compile_step(config: RunConfig, mesh: Mesh) -> CompiledStep:
    """Compiles the step of a run that declares its number of classes (input.num_classes)."""
    planned = planned_step(config, mesh)
    lowered = lower(planned)
    started = time.perf_counter()
    compiled = lowered.lowered.compile()
    secs = lowered.secs + time.perf_counter() - started
    flops = planned.model.forward_flops
    return CompiledStep(compiled, planned.layout, planned.batch, flops, secs)
