"""The real training step, compiled for the local devices or for absent TPUs."""

import re
import time
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from vit_jax.config import RunConfig
from vit_jax.core.errors import UserError
from vit_jax.models import ModelInfo
from vit_jax.plan.collectives import collectives
from vit_jax.plan.hlo import instructions
from vit_jax.run import build
from vit_jax.training import step
from vit_jax.training.state import StateLayout

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')


class DoesNotFit(UserError):
    """The compiler says that a step takes more memory than a device has."""


class PlannedStep(NamedTuple):
    """The step of a run by shapes and shardings, on devices that may be absent."""

    model: ModelInfo
    layout: StateLayout
    batch: step.Batch
    update: Any
    total_steps: int


class LoweredStep(NamedTuple):
    """A step that can be compiled; `secs`: the time of lowering."""

    lowered: Any
    mesh: Mesh
    secs: float


class Figures(NamedTuple):
    """Figures that a plan reads from a compiled step; all are for one device.

    Attributes:
      peak_bytes: peak memory use.
      sent: bytes that it sends or reduces, by kind of collective.
      cycles: the compiler's own estimates, summed; it has none for collectives, nor for CPUs.
      accessed_bytes: memory traffic; None for a step with a loop, whose body would count once.
      compile_secs: the time of compilation.
    """

    peak_bytes: int
    sent: dict[str, int]
    cycles: float
    accessed_bytes: float | None
    compile_secs: float


def planned_step(config: RunConfig, mesh: Mesh, *, num_examples: int | None = None) -> PlannedStep:
    """The step of a run whose number of classes is declared (input.num_classes).

    Without `num_examples` an epoch has the declared number of examples, or else one batch.
    """
    num_classes, batch_size = config.input.num_classes, config.input.batch_size
    assert num_classes is not None
    num_examples = num_examples or build.declared_examples(config.input) or batch_size
    parts = build.step_parts(config, mesh, num_examples=num_examples, num_classes=num_classes)
    batch = step.batch_layout(
        mesh, batch_size=batch_size, image_size=parts.model.preprocess.image_size, max_labels=1
    )
    update = build.update(config, parts)
    return PlannedStep(parts.model.info, parts.layout, batch, update, parts.durations.total_steps)


def lower(planned: PlannedStep) -> LoweredStep:
    """Lowers the step, to be compiled."""
    started = time.perf_counter()
    lowered = step.lower_update(planned.update, planned.layout, planned.batch)
    return LoweredStep(lowered, planned.layout.mesh, time.perf_counter() - started)


def read_figures(lowered: LoweredStep) -> Figures:
    """Compiles a step, and reads its figures. DoesNotFit if the compiler says so."""
    started = time.perf_counter()
    try:
        compiled = lowered.lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise DoesNotFit(f"The step does not fit: {_needed(str(error))}") from error
    secs = lowered.secs + time.perf_counter() - started
    hlo = compiled.as_text()
    sent: dict[str, int] = {}
    for one in collectives(hlo, lowered.mesh.shape):
        sent[one.kind] = sent.get(one.kind, 0) + one.total_bytes
    return Figures(
        peak_bytes=peak_bytes(compiled.memory_analysis()),
        sent=sent,
        cycles=mega_cycles(hlo) * 1e6,
        accessed_bytes=None if " while(" in hlo else compiled.cost_analysis().get("bytes accessed"),
        compile_secs=secs,
    )


def _needed(message: str) -> str:
    """The compiler's own sentence about the memory that is needed."""
    match = re.search(r"Ran out of memory.*?(?=\. |\n|$)", message)
    return f"{match[0] if match else message.splitlines()[0]}."


def peak_bytes(memory: Any) -> int:
    """Memory of one device: a step's arguments (state and batch), outputs and temporaries."""
    new = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return int(memory.argument_size_in_bytes + memory.temp_size_in_bytes + new)


def mega_cycles(hlo: str) -> float:
    """Sum of the compiler's own estimates for a TPU; it has none for collectives."""
    cycles = (
        one.runs * int(match[1])
        for one in instructions(hlo)
        if not one.fused and (match := _CYCLES.search(one.text))
    )
    return sum(cycles) / 1e6
