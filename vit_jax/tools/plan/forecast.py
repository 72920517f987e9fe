"""Memory of a device, time of a step and chip-hours of a run.

Memory and traffic come from the compiled step, where it is compiled; sizes of the state always from
its shapes and shardings. The time is an estimate, with all its parts.
"""

import collections
import dataclasses
import math

import jax
from jax.sharding import Mesh

from vit_jax.config import InputConfig, RunConfig
from vit_jax.core.arrays import Pixels
from vit_jax.core.errors import UserError
from vit_jax.core.screen import format_bytes
from vit_jax.learning.losses import Batch
from vit_jax.learning.state import StateLayout, device_bytes, total_bytes
from vit_jax.models import ModelInfo
from vit_jax.parallel import chips
from vit_jax.parallel.products import Products
from vit_jax.run.parts import device_cache, examples, inputs
from vit_jax.tools.plan import compiled as compiling
from vit_jax.tools.plan import topology as topologies
from vit_jax.tools.plan.compiled import DoesNotFit, Figures, PlannedStep

# Matrix units in a jax device, which give the clock rate; not for v6e, by the numbers on its page.
MXUS = {"v2": 1, "v3": 2, "v4": 8, "v5e": 4, "v5p": 8}


@dataclasses.dataclass(frozen=True)
class StepTime:
    """Seconds of a step, by each resource alone, as far as known."""

    matrix: float | None  # the matrix products (parallel/products.py) at the data sheet's rate
    # The bytes that the compiled step accesses, at the memory's bandwidth. On TPUs unrolled steps
    # only: the compiler counts the body of a loop once.
    hbm: float | None
    interconnect: float | None  # the bytes that devices exchange, at the bandwidth of all-reduces
    # The compiler's own estimates of all operations but those between devices; TPUs only.
    cycles: float | None
    # One kernel after the other, each at the slower of the first two; GPUs only.
    kernels: float | None = None

    @property
    def roofline(self) -> float | None:
        """Lower bound of the time, with all resources in parallel."""
        parts = (self.matrix, self.hbm, self.interconnect, self.kernels)
        return max((x for x in parts if x is not None), default=None)

    @property
    def estimate(self) -> float | None:
        """Sum of the compiler's cycles and the communication, else `roofline`."""
        if self.cycles is None:
            return self.roofline
        return max(self.cycles + (self.interconnect or 0), self.roofline or 0)


def step_time(
    figures: Figures | None,
    products: Products,
    images: float,
    generation: str | None,
    peak: float | None,
    hosts: int,
) -> StepTime:
    """Seconds of a step with `images` a device, at `peak` FLOP/s a device."""
    flops = products.training * images
    matrix = flops / peak if peak else None
    if generation is None or figures is None:
        return StepTime(matrix, None, None, None)
    if generation in chips.GPUS:
        return _gpu_time(figures, matrix, chips.GPUS[generation], hosts)
    chip, accessed, units = chips.TPUS[generation], figures.accessed_bytes, MXUS.get(generation)
    # Cycles a second, from the data sheet's rate of matrix products.
    clock = peak / (units * 2 * 128 * 128) if units and peak else None
    giga, sent = 1e9 / chip.cores, sum(figures.sent.values())
    return StepTime(
        matrix=matrix,
        hbm=accessed / (chip.hbm_gbps * giga) if accessed and chip.hbm_gbps else None,
        interconnect=sent / (chip.reduce_gbps * giga) if chip.reduce_gbps else None,
        cycles=figures.cycles / clock if clock else None,
    )


def _gpu_time(figures: Figures, matrix: float | None, chip: chips.GpuChip, hosts: int) -> StepTime:
    """Seconds of a step on GPUs: bounds, since XLA's own times are not usable (docs/plan.md)."""
    # An all-reduce is a reduce-scatter and an all-gather.
    sent = sum(n if kind == "all-reduce" else n / 2 for kind, n in figures.sent.items())
    return StepTime(
        matrix=matrix,
        hbm=(figures.accessed_bytes or 0) / (chip.hbm_gbps * 1e9),
        interconnect=sent / (chip.reduce_gbps(hosts) * 1e9),
        cycles=None,
        kernels=figures.kernels_secs,
    )


SECS_A_DAY = 86_400
# Memory of saving L/16, in multiples of the saved bytes (benchmarks/claims.csv): the copy that
# files are written from, and the data being compressed.
SAVING_FACTOR = 1.27
# Batches in a host's memory at once: two that tf.data has ready, one that it is making, and
# one that is being copied to the devices (data/pipeline.py, feed.py).
BATCHES = 4


@dataclasses.dataclass(frozen=True)
class Memory:
    # Sizes by shapes and shardings.
    parameters: int
    optimizer: int
    average: int  # and the state of the method
    # Kept by the blocks for the backward pass, by the model's shapes and the method's products
    # alone; None where remat leaves that to the compiler.
    activations: int | None
    peak: int | None  # total peak of the compiled step; None if it was not compiled
    there: int | None  # memory of the device, or None if unknown
    # Training images that input.cache=device keeps, beside the peak; those of evaluations come on
    # top, since only their data say how many there are.
    images: int = 0
    teacher: int = 0

    @property
    def state(self) -> int:
        return self.parameters + self.optimizer + self.average + self.teacher


@dataclasses.dataclass(frozen=True)
class HostNeeds:
    """Needs of the host that needs the most."""

    images: int  # images of each batch that it reads
    input_bytes: int  # size of the batches in memory, without files and images being decoded
    saving_bytes: int  # memory while a checkpoint is written


@dataclasses.dataclass(frozen=True)
class Forecast:
    topology: str | None  # its name, or None for the devices here
    device_kind: str
    devices: int
    chips: int | None  # number of TPUs or GPUs; None without a topology
    hosts: int
    mesh: dict[str, int]
    model: ModelInfo
    method: str  # the config's method.kind
    products: Products  # FLOPs of one example
    batch_size: int
    steps: int
    memory: Memory
    figures: Figures | None  # figures of the compiled step; None if it was not compiled
    time: StepTime
    peak_flops: float | None
    saved_bytes: int  # size of a checkpoint, all hosts together
    host: HostNeeds

    @property
    def on_gpus(self) -> bool:
        """True for GPUs, whose times are bounds."""
        return (self.topology or "").partition(":")[0] in chips.GPUS

    @property
    def exaflops(self) -> float:
        """ExaFLOPs of the run: matrix FLOPs of an example in training x examples / 1e18."""
        return self.products.training * self.batch_size * self.steps / 1e18

    @property
    def days(self) -> float | None:
        """Days of training, by the estimate of a step, without evaluations and saving."""
        secs = self.time.estimate
        return None if secs is None else secs * self.steps / SECS_A_DAY

    @property
    def chip_hours(self) -> float | None:
        """Chip-hours: hours times chips."""
        return None if self.days is None or self.chips is None else self.days * 24 * self.chips

    @property
    def core_days(self) -> float | None:
        """TensorCore-days, as in the paper's table 2: two cores a chip, one in v5e and v6e."""
        if self.chip_hours is None or self.on_gpus:
            return None
        generation = (self.topology or "").partition(":")[0]
        return self.chip_hours / 24 * (1 if generation in ("v5e", "v6e") else 2)

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilisation by the estimate; on GPUs an upper bound."""
        matrix, estimate = self.time.matrix, self.time.estimate
        if matrix is None or estimate is None:
            return None
        if self.time.cycles is None and self.time.kernels is None:  # no more than 1 is known
            return None
        return matrix / estimate

    @property
    def images_per_host_second(self) -> float | None:
        secs = self.time.estimate
        return None if not secs else self.host.images / secs


def forecast(config: RunConfig, topology: str | None = None, *, compiled: bool) -> Forecast:
    """Forecasts a run from its config alone, on a topology "v5e:16x16" or the devices here.

    Raises:
      DoesNotFit: the step takes more memory than a device has.
    """
    c, mesh = config.input, topologies.mesh(topology, config.mesh)
    num_examples = _declared_examples(c)
    pixels = Pixels(config.model.channels or 3)
    inputs.check_batch(c, mesh, parts=config.optim.grad_accum_steps, pixels=pixels)
    step = compiling.planned_step(config, mesh, num_examples=num_examples)
    figures = compiling.read_figures(step) if compiled else None
    generation = topology.partition(":")[0] if topology else None
    memory = _memory(config, step, figures, generation, num_examples)
    _check_memory(memory, on_gpu=generation in chips.GPUS)
    hosts = len({d.process_index for d in mesh.devices.flat})
    device_kind = mesh.devices.flat[0].device_kind
    peak = chips.peak_flops(device_kind)
    return Forecast(
        topology=topology,
        device_kind=device_kind,
        devices=mesh.size,
        chips=mesh.size // _cores(generation) if generation else None,
        hosts=hosts,
        mesh={name: size for name, size in mesh.shape.items() if size > 1},
        model=step.model,
        method=config.method.kind,
        products=step.products,
        batch_size=c.batch_size,
        steps=step.total_steps,
        memory=memory,
        figures=figures,
        time=step_time(figures, step.products, c.batch_size / mesh.size, generation, peak, hosts),
        peak_flops=peak,
        saved_bytes=total_bytes(step.layout.state),
        host=_host_needs(step.layout, step.batch),
    )


def _declared_examples(c: InputConfig) -> int:
    """Examples of an epoch, which the config has to declare, as the number of classes."""
    declared = examples.declared_examples(dataclasses.replace(c, subset_per_class=None))
    values = {"num_examples=...": declared, "num_classes=...": c.num_classes}
    missing = [field for field, number in values.items() if number is None]
    if c.subset_per_class is not None:
        missing += ["subset_per_class=none", "subset_examples=..."]
    if missing or declared is None:
        fields = " ".join(f"--config.input.{field}" for field in missing)
        raise UserError(f"The numbers of examples and classes are not known: give {fields}")
    return declared


def _memory(
    config: RunConfig,
    step: PlannedStep,
    figures: Figures | None,
    generation: str | None,
    num_examples: int,
) -> Memory:
    layout, state = step.layout, step.layout.state
    if generation is None:
        there = (layout.mesh.local_devices[0].memory_stats() or {}).get("bytes_limit")
    elif generation in chips.GPUS:
        there = topologies.usable_bytes(generation)
    else:
        there = int(chips.TPUS[generation].hbm_gib * 2**30) // _cores(generation)
    images = 0
    if config.input.cache == examples.DEVICE:
        size = device_cache.declared_size(config.input.preprocess, "input.preprocess")
        images = device_cache.cached_bytes(num_examples, size, layout.mesh, there).on_device
    return Memory(
        parameters=device_bytes(state.params),
        optimizer=device_bytes(state.opt_state),
        average=device_bytes((state.ema, state.method_state)),
        teacher=device_bytes(layout.teacher_params),
        activations=_activations(config, step.model, step.products, layout.mesh),
        peak=figures.peak_bytes if figures else None,
        there=there,
        images=images,
    )


def _check_memory(memory: Memory, *, on_gpu: bool) -> None:
    """Raises DoesNotFit for a step, and images beside it, as compilers for GPUs do not."""
    peak, there, images = memory.peak, memory.there, memory.images
    if peak is None or there is None or peak + images <= there:
        return
    if peak <= there:
        raise DoesNotFit(
            f"The images of input.cache=device do not fit: they take {format_bytes(images)} beside "
            f"{format_bytes(peak)} of the step, of {format_bytes(there)}. Set input.cache=ram."
        )
    share = f", a share of the GPU's memory that {topologies.FRACTIONS[0]} sets" if on_gpu else ""
    raise DoesNotFit(
        f"The step does not fit: it takes {format_bytes(peak)} of {format_bytes(there)}{share}."
    )


def _cores(generation: str) -> int:
    return chips.TPUS[generation].cores if generation in chips.TPUS else 1


def _activations(config: RunConfig, model: ModelInfo, products: Products, mesh: Mesh) -> int | None:
    """Activation bytes of a device and microbatch, which a method changes as it does products."""
    parts = mesh.size // mesh.shape["tensor"] * config.optim.grad_accum_steps
    images = config.input.batch_size / parts * products.learnt / model.forward_flops
    is_bfloat16 = model.spec["dtype"] == "bfloat16"
    kept, inputs_alone = model.activation_bytes, model.block_input_bytes
    nbytes = {"none": kept, "dots": kept, "full": inputs_alone}.get(model.spec["remat"])
    return None if nbytes is None else int(nbytes * images * (1 if is_bfloat16 else 2))


def _host_needs(layout: StateLayout, batch: Batch) -> HostNeeds:
    copied = sum(_copied_bytes(x) for x in jax.tree.leaves(layout.state))
    weight, host_parts = batch["weight"], collections.defaultdict(set)
    for device, index in weight.sharding.devices_indices_map(weight.shape).items():
        host_parts[device.process_index].add(index[0].indices(weight.shape[0])[:2])
    images = max(sum(stop - start for start, stop in parts) for parts in host_parts.values())
    index_bytes = 8  # for each example, on the host alone
    row_bytes = sum(math.prod(x.shape[1:]) * x.dtype.itemsize for x in batch.values()) + index_bytes
    return HostNeeds(images, BATCHES * images * row_bytes, round(SAVING_FACTOR * copied))


def _copied_bytes(array: jax.ShapeDtypeStruct) -> int:
    """Bytes of an array that a host copies to save it.

    Devices that hold the same share the work where a side divides by their number; else, and on
    GPUs always, one of them copies all of it (orbax's default).
    """
    assert array.sharding is not None
    devices = array.sharding.device_set
    shape = array.sharding.shard_shape(array.shape)
    nbytes = math.prod(shape) * array.dtype.itemsize
    parts = math.prod(array.shape) // max(math.prod(shape), 1)
    replicas = len(devices) // max(parts, 1)
    hosts = collections.Counter(device.process_index for device in devices)
    of_busiest = max(hosts.values())
    on_gpus = next(iter(devices)).platform == "gpu"
    if not on_gpus and any(side % replicas == 0 for side in shape):
        return nbytes * of_busiest // replicas
    return nbytes * min(of_busiest, parts)
