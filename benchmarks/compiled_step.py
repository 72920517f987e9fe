"""The training step of a config, compiled."""

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from jax.sharding import Mesh

from vit_jax.config import RunConfig
from vit_jax.plan.compiled import compile_, lower, planned_step
from vit_jax.training.state import StateLayout
from vit_jax.training.step import Batch


class CompiledStep(NamedTuple):
    """A compiled step and what it was compiled from."""

    compiled: Any
    layout: StateLayout
    batch: Batch
    forward_flops: int  # per image
    compile_secs: float
    spec: Mapping[str, Any]  # the model's fields


def compile_step(config: RunConfig, mesh: Mesh) -> CompiledStep:
    """Compiles the step of a run that declares its number of classes (input.num_classes)."""
    planned = planned_step(config, mesh)
    lowered = lower(planned)
    started = time.perf_counter()
    compiled = compile_(lowered)
    secs = lowered.secs + time.perf_counter() - started
    model = planned.model
    return CompiledStep(
        compiled, planned.layout, planned.batch, model.forward_flops, secs, model.spec
    )
