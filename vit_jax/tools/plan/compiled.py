"""The real training step, compiled for the local devices, or for absent TPUs or GPUs."""

import re
import time
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from vit_jax.config import RunConfig
from vit_jax.core.errors import UserError
from vit_jax.learning.losses import Batch, batch_layout
from vit_jax.learning.state import StateLayout
from vit_jax.learning.step import lower_update
from vit_jax.models import ModelInfo
from vit_jax.parallel.products import Products
from vit_jax.run.parts import examples, preprocessing, updates
from vit_jax.tools.plan.hlo import kernel_secs, kernels, mega_cycles, sent_bytes


class DoesNotFit(UserError):
    """Error for a step that takes more memory than a device has."""


class PlannedStep(NamedTuple):
    """The step of a run by shapes and shardings, on devices that may be absent."""

    model: ModelInfo
    products: Products
    layout: StateLayout
    batch: Batch
    update: Any
    total_steps: int


class Figures(NamedTuple):
    """Figures that a plan reads from a compiled step; all are for one device."""

    peak_bytes: int  # peak memory use
    sent: dict[str, int]  # bytes that it sends or reduces, by kind of collective
    # The compiler's own estimates, summed; it has them for TPUs alone, and none for collectives.
    cycles: float
    # Memory traffic; on a GPU of all kernels, else None for a step with a loop, whose body would
    # count once.
    accessed_bytes: float | None
    compile_secs: float  # the time of compilation
    kernels: int | None = None  # their number, on a GPU alone
    # Their time one after the other, each at the rate of matrix products or the memory's bandwidth,
    # whichever is slower; on GPUs of chips.GPUS alone.
    kernels_secs: float | None = None


def planned_step(config: RunConfig, mesh: Mesh, *, num_examples: int | None = None) -> PlannedStep:
    """The step of a run that declares input.num_classes; an unknown epoch is one batch."""
    num_classes, batch_size = config.input.num_classes, config.input.batch_size
    assert num_classes is not None
    num_examples = num_examples or examples.declared_examples(config.input) or batch_size
    parts = updates.step_parts(config, mesh, num_examples=num_examples, num_classes=num_classes)
    size, views = parts.model.preprocess.image_size, preprocessing.view_sizes(config.input)
    batch = batch_layout(mesh, batch_size=batch_size, image_size=size, views=views, max_labels=1)
    update, layout = updates.update(config, parts), parts.layout.in_steps
    total_steps = parts.durations.total_steps
    return PlannedStep(parts.model.info, parts.products, layout, batch, update, total_steps)


def compile_(planned: PlannedStep) -> Any:
    """Compiles a step; raises DoesNotFit where the compiler runs out of memory."""
    try:
        return lower_update(planned.update, planned.layout, planned.batch).compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        match = re.search(r"Ran out of memory.*?(?=\. |\n|$)", str(error))
        needed = match[0] if match else str(error).splitlines()[0]
        raise DoesNotFit(f"The step does not fit: {needed}.") from error


def read_figures(planned: PlannedStep) -> Figures:
    started, mesh = time.perf_counter(), planned.layout.mesh
    compiled = compile_(planned)
    secs, hlo = time.perf_counter() - started, compiled.as_text()
    peak, sent = peak_bytes(compiled.memory_analysis()), dict(sent_bytes(hlo, mesh.shape))
    figures = Figures(peak, sent, mega_cycles(hlo) * 1e6, None, secs)
    device = mesh.devices.flat[0]
    if device.platform != "gpu":
        accessed = None if " while(" in hlo else compiled.cost_analysis().get("bytes accessed")
        return figures._replace(accessed_bytes=accessed)
    gpu_kernels = kernels(hlo)
    return figures._replace(
        accessed_bytes=sum(k.runs * k.nbytes for k in gpu_kernels),
        kernels=sum(k.runs for k in gpu_kernels),
        kernels_secs=kernel_secs(gpu_kernels, device.device_kind),
    )


def peak_bytes(memory: Any) -> int:
    """Memory of one device: a step's arguments (state and batch), outputs and temporaries."""
    new = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return int(memory.argument_size_in_bytes + memory.temp_size_in_bytes + new)
