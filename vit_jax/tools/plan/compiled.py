"""The real training step, compiled for the local devices, or for absent TPUs or GPUs.

jax's own cache keeps programs that can be run; of those for absent devices a plan needs only a few
figures, or the fact that the step did not fit. The cache of these is a folder of small files, each
named after a hash of the compiler's whole input and of the code that reads the figures. A file that
cannot be read counts as missing.
"""

import contextlib
import hashlib
import json
import os
import re
import time
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import jax
from etils import epath
from jax.sharding import Mesh

from vit_jax.config import RunConfig
from vit_jax.core.errors import UserError
from vit_jax.core.files import cache_dir, write_file
from vit_jax.learning.losses import Batch, batch_layout
from vit_jax.learning.state import StateLayout
from vit_jax.learning.updates import lower_update
from vit_jax.models import ModelInfo
from vit_jax.parallel import chips
from vit_jax.parallel.products import Products
from vit_jax.run.parts import examples, preprocessing, updates
from vit_jax.tools.plan import hlo as hlo_text
from vit_jax.tools.plan import topology as topologies
from vit_jax.tools.plan.hlo import kernel_secs, kernels, mega_cycles, sent_bytes

# The code that figures depend on, beside the program.
_READERS = (__file__, topologies.__file__, hlo_text.__file__, chips.__file__)
_ADDRESS = re.compile(r'(@CustomSPMDPartitioning\(.*?backend_config = )"\d+"')


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
      cycles: the compiler's own estimates, summed; it has them for TPUs alone, and none for
        collectives.
      accessed_bytes: memory traffic; on a GPU of all kernels, else None for a step with a loop,
        whose body would count once.
      compile_secs: the time of compilation.
      kernels: their number, on a GPU alone.
      kernels_secs: their time one after the other, each at the rate of matrix products or the
        memory's bandwidth, whichever is slower; on GPUs of chips.GPUS alone.
    """

    peak_bytes: int
    sent: dict[str, int]
    cycles: float
    accessed_bytes: float | None
    compile_secs: float
    kernels: int | None = None
    kernels_secs: float | None = None


def planned_step(config: RunConfig, mesh: Mesh, *, num_examples: int | None = None) -> PlannedStep:
    """The step of a run whose number of classes is declared (input.num_classes).

    Without `num_examples` an epoch has the declared number of examples, or else one batch.
    """
    num_classes, batch_size = config.input.num_classes, config.input.batch_size
    assert num_classes is not None
    num_examples = num_examples or examples.declared_examples(config.input) or batch_size
    parts = updates.step_parts(config, mesh, num_examples=num_examples, num_classes=num_classes)
    batch = batch_layout(
        mesh,
        batch_size=batch_size,
        image_size=parts.model.preprocess.image_size,
        views=preprocessing.view_sizes(config.input),
        max_labels=1,
    )
    update = updates.update(config, parts)
    layout = parts.layout.in_steps
    total_steps = parts.durations.total_steps
    return PlannedStep(parts.model.info, parts.products, layout, batch, update, total_steps)


def lower(planned: PlannedStep) -> LoweredStep:
    """Lowers the step, to be compiled."""
    started = time.perf_counter()
    lowered = lower_update(planned.update, planned.layout, planned.batch)
    return LoweredStep(lowered, planned.layout.mesh, time.perf_counter() - started)


def compile_(step: LoweredStep) -> Any:
    """The compiled step. DoesNotFit if the compiler says so."""
    try:
        return step.lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        message = str(error)
        match = re.search(r"Ran out of memory.*?(?=\. |\n|$)", message)
        needed = match[0] if match else message.splitlines()[0]
        raise DoesNotFit(f"The step does not fit: {needed}.") from error


def read_figures(lowered: LoweredStep) -> Figures:
    """Compiles a step, and reads its figures. DoesNotFit if the compiler says so."""
    started = time.perf_counter()
    compiled = compile_(lowered)
    secs = lowered.secs + time.perf_counter() - started
    hlo = compiled.as_text()
    figures = Figures(
        peak_bytes=peak_bytes(compiled.memory_analysis()),
        sent=dict(sent_bytes(hlo, lowered.mesh.shape)),
        cycles=mega_cycles(hlo) * 1e6,
        accessed_bytes=None,
        compile_secs=secs,
    )
    device = lowered.mesh.devices.flat[0]
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


def cached_figures(step: LoweredStep, topology: str | None, *, anew: bool) -> tuple[Figures, bool]:
    """The figures of a step for a topology "v5e:16x16", and whether they are from the cache.

    Args:
      topology: None for the devices here; of these jax keeps the program itself.
      anew: compile it even if its figures are cached, and cache the new ones.

    Raises:
      DoesNotFit: the compiler says so, or said so before.
    """
    if topology is None:
        return read_figures(step), False
    path = cache_dir() / "plans" / f"{key(step, topology)}.json"
    cached: Any = None
    if not anew:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            document = json.loads(path.read_text())
            if document["checksum"] == _checksum(document["content"]):
                cached = document["content"]
    if cached and "does_not_fit" in cached:
        raise DoesNotFit(cached["does_not_fit"])
    if cached:
        return Figures(**cached), True
    try:
        figures = read_figures(step)
    except DoesNotFit as error:
        _write(path, {"does_not_fit": str(error)})
        raise
    _write(path, figures._asdict())
    return figures, False


def key(step: LoweredStep, topology: str) -> str:
    """A hash of a program and of everything that determines its compilation."""
    devices = list(step.mesh.devices.flat)
    parts = [
        without_addresses(step.lowered.as_text()),
        topology,
        str([(d.id, d.device_kind) for d in devices]),
        *(metadata.version(package) for package in ("jax", "jaxlib")),
        devices[0].client.platform_version,  # version of libtpu
        topologies.compiler_versions() if devices[0].platform == "gpu" else "",
        *(os.environ.get(flag, "") for flag in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")),
        *(Path(file).read_text() for file in _READERS),
    ]
    digests = [hashlib.sha256(part.encode()).digest() for part in parts]
    return hashlib.sha256(b"".join(digests)).hexdigest()


def without_addresses(program: str) -> str:
    """A lowered program without the addresses of Python's functions, which say how to divide it."""
    return _ADDRESS.sub(r"\1", program)


def _checksum(content: dict[str, object]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _write(path: Path, content: dict[str, object]) -> None:
    document = {"content": content, "checksum": _checksum(content)}
    with contextlib.suppress(OSError):  # a plan works without a cache
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_file(epath.Path(path), json.dumps(document))
