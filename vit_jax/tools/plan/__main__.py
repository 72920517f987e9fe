"""Estimates memory, time and cost of a run, before any device time is spent.

    vit-jax plan --config configs/vit_l16_i21k.py --topology v5e:16x16

Compiles the step of the config for TPUs that are not here (pip install 'jax[tpu]'), for GPUs that
are not (--topology h100:2x8; docs/plan.md), or for the devices here, and prints memory, traffic and
an estimate of time. Data that are here are counted, not read. --nocompile prints in seconds what
follows from shapes and shardings alone.
"""

import bisect
import dataclasses
import functools
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
from absl import flags
from jax.sharding import Mesh

from vit_jax import config as configs
from vit_jax.config import RunConfig, TotalConfig
from vit_jax.core import axes, command, compilation_cache
from vit_jax.core.errors import UserError
from vit_jax.core.screen import Screen, aligned, format_bytes, format_count, format_duration
from vit_jax.learning.methods import SUPERVISED
from vit_jax.parallel.mesh import BATCH_AXES
from vit_jax.run import adapt
from vit_jax.run.announce import forward
from vit_jax.run.parts import examples
from vit_jax.tools.plan import topology
from vit_jax.tools.plan.compiled import DoesNotFit
from vit_jax.tools.plan.forecast import SECS_A_DAY, Forecast, Memory, forecast

Row = tuple[str, str]  # label and value


def rows(forecast: Forecast, *, price: float | None) -> Iterator[Row]:
    """Rows of the table, with empty ones between its parts, and `price` a chip-hour."""
    model, figures = forecast.model, forecast.figures
    axes = " x ".join(f"{axis} {size}" for axis, size in forecast.mesh.items())
    where = f"{forecast.topology}: " if forecast.topology else ""
    steps = f"{forecast.steps:,} steps of {forecast.batch_size:,} images"
    flops = f"{forecast.exaflops:,.4g} exaFLOPs"
    if forecast.exaflops < 1e-3:
        flops = f"{format_count(forecast.exaflops * 1e18)}FLOPs"
    axes = f", {axes}" if axes else ""
    yield "devices", f"{where}{forecast.devices:,} x {forecast.device_kind}{axes}"
    yield "hosts", f"{forecast.hosts:,}"
    yield "", ""
    yield "model", f"{model.name}, {format_count(model.parameters)} parameters"
    yield "an image", f"{format_count(model.forward_flops)}FLOPs forward, in matrix products"
    if forecast.method != SUPERVISED:
        yield f"  by {forecast.method}", forward(forecast.products)
    yield "the run", f"{steps}: {flops}"
    yield "", ""
    yield from _memory(forecast)
    yield "", ""
    yield from _hosts(forecast)
    yield "", ""
    yield from _time(forecast)
    yield from _cost(forecast, price)
    if figures is not None:
        yield "compiled in", f"{figures.compile_secs:.1f} s"


def _memory(forecast: Forecast) -> Iterator[Row]:
    memory, taken = forecast.memory, forecast.memory.peak
    yield "a device holds", ""
    yield "  parameters", size(memory.parameters)
    yield "  optimizer", size(memory.optimizer)
    yield "  average", size(memory.average)
    if memory.teacher:
        yield "  teacher", size(memory.teacher)
    if taken is not None:
        yield "  gradients, activations", size(taken - memory.state)
        yield "  peak", size(taken)
    elif memory.activations is not None:
        yield "  activations, about", size(memory.activations)
        taken = memory.state + memory.activations
    if memory.images:
        yield "  training images beside it", size(memory.images)
    if memory.there is not None:
        yield "  of", size(memory.there)
        free = memory.there - (taken or memory.state) - memory.images
        tight = ": it will hardly fit; without --nocompile the plan tries what would"
        yield "  free", size(free) + ("" if free >= 0 else tight)
    if figures := forecast.figures:
        yield "", ""
        yield "a device sends in a step", "" if any(figures.sent.values()) else "nothing"
        for kind, nbytes in sorted(figures.sent.items()):
            yield f"  {kind}", size(nbytes)
        if figures.kernels is not None:
            yield "a device runs in a step", f"{figures.kernels:,} kernels"
            yield "  that read and write", size(figures.accessed_bytes or 0)


def _time(forecast: Forecast) -> Iterator[Row]:
    time = forecast.time
    yield "a step takes", ""
    yield "  matrix products", _ms(time.matrix)
    yield "  memory", _ms(time.hbm)
    yield "  interconnect", _ms(time.interconnect)
    if forecast.on_gpus:
        yield "  kernels, one by one", f"{_ms(time.kernels)}, each by the slower of the first two"
        yield "  at least, by roofline", f"{_ms(time.roofline)}, not a measurement"
        return
    yield "  the compiler's cycles", _ms(time.cycles)
    yield "  at least, these together", _ms(time.roofline)
    if time.cycles is not None:
        yield "  estimate", f"{_ms(time.estimate)}, cycles and interconnect one after the other"


def _hosts(forecast: Forecast) -> Iterator[Row]:
    host = forecast.host
    yield "a checkpoint", size(forecast.saved_bytes)
    yield "a host needs", ""
    yield "  to save", size(host.saving_bytes)
    yield "  for batches", size(host.input_bytes)
    a_second = ""
    if forecast.images_per_host_second is not None:
        most = "at most " if forecast.time.cycles is None else ""
        a_second = f", {most}{forecast.images_per_host_second:,.0f} a second"
    yield "  to read", f"{host.images:,} images a step{a_second}"


def _cost(forecast: Forecast, price: float | None) -> Iterator[Row]:
    least = "at least " if forecast.time.cycles is None else ""
    if forecast.mfu is not None:
        yield "MFU", f"{'at most ' if forecast.on_gpus else ''}{forecast.mfu:.0%}"
    if forecast.days is not None:
        yield "time", least + format_duration(forecast.days * SECS_A_DAY)
    if forecast.chip_hours is not None:
        core_days = forecast.core_days
        of_tpus = "" if core_days is None else f" ({core_days:,.1f} TPU-core-days)"
        yield "chip-hours", f"{least}{forecast.chip_hours:,.0f}{of_tpus}"
        if price is not None:
            yield "cost", f"{least}{forecast.chip_hours * price:,.0f}, at {price:g} a chip-hour"


def size(nbytes: float) -> str:
    """Formats bytes, aligned at the unit."""
    number, unit = format_bytes(nbytes).split()
    return f"{number:>8} {unit}"


def _ms(secs: float | None) -> str:
    return f"{'-':>8}" if secs is None else f"{secs * 1e3:8.1f} ms"


def as_json(forecast: Forecast, *, price: float | None) -> str:
    """The forecast and figures derived from it as JSON, with `price` a chip-hour."""
    derived = ("exaflops", "days", "chip_hours", "core_days", "mfu", "images_per_host_second")
    document = dataclasses.asdict(forecast) | {name: getattr(forecast, name) for name in derived}
    hours, figures = forecast.chip_hours, document.pop("figures")
    for key in ("sent", "accessed_bytes", "kernels", "compile_secs"):
        document[key.removesuffix("_bytes")] = None if figures is None else getattr(figures, key)
    document["products"] = forecast.products._asdict()
    document["cost"] = None if price is None or hours is None else hours * price
    document["time"] |= {"roofline": forecast.time.roofline, "estimate": forecast.time.estimate}
    return json.dumps(document, indent=2)


MAX_DOUBLINGS = 10  # of the batch
LONG_RUN = TotalConfig(steps=10**9)  # for larger batches; memory does not depend on it


class LargestBatch(NamedTuple):
    """The fewest microbatches with which a batch fits, and the largest batch without any."""

    batch_size: int
    grad_accum_steps: int  # number of microbatches
    peak: int  # bytes of a device with these microbatches
    there: int  # bytes that a device has
    in_one_go: int  # largest batch tried that fits without microbatches
    too_large: int | None  # smallest batch tried that does not, if any

    def rows(self) -> list[Row]:
        parts, micro = self.grad_accum_steps, self.batch_size // self.grad_accum_steps
        how = "in one go" if parts == 1 else f"in {parts:,} microbatches of {micro:,}"
        most = f"{self.in_one_go:,} images"
        if self.too_large is not None:
            most += f"; {self.too_large:,} do not fit"
        return [
            ("the batch", f"{self.batch_size:,} images fit {how}"),
            ("peak", f"{format_bytes(self.peak)} of {format_bytes(self.there)} of each device"),
            ("the same update by", f"--config.optim.grad_accum_steps={parts}"),
            ("in one go at most", f"{most} (input.batch_size, another recipe)"),
        ]


def largest_batch(
    config: RunConfig,
    mesh: Mesh,
    memory_of: Callable[[RunConfig], Memory],
    *,
    there: int | None,
    say: Callable[[str], None] = lambda text: None,
) -> LargestBatch:
    """Finds the fewest microbatches with which the config's batch fits, by bisection.

    `memory_of` compiles the step of a config, and may raise DoesNotFit, as this does where not even
    the smallest fit; `there` are the bytes of a device, by default those that it tells.
    """
    batch_size, devices = config.input.batch_size, axes.num_devices(BATCH_AXES, mesh.shape)
    fitting: dict[int, tuple[int, int]] = {}  # microbatch -> peak and memory there, where it fits

    def fits(batch_size: int, parts: int = 1) -> bool:
        of = "" if parts == 1 else f" in {parts:,} microbatches"
        say(f"does a batch of {batch_size:,}{of} fit?")
        tried = _with_batch(config, batch_size, parts)
        try:
            memory = memory_of(tried)
        except DoesNotFit:
            return False
        limit = memory.there if there is None else there
        assert memory.peak is not None
        if limit is None:
            raise UserError("The memory of a device is not known: give --memory_gib or --topology.")
        peak = memory.peak + memory.images
        fitting[batch_size // parts] = peak, limit
        return peak <= limit

    if not fits(batch_size):
        # Each smaller microbatch fits where a larger one does.
        divisors = [
            n for n in range(1, batch_size // devices + 1) if not batch_size % (n * devices)
        ]
        last = len(divisors) - 1
        if last == 0 or not fits(batch_size, divisors[last]):
            least = batch_size // divisors[last]
            raise DoesNotFit(f"Not even {divisors[last]:,} microbatches of {least:,} images fit.")
        fits_in = functools.partial(fits, batch_size)
        fewest = bisect.bisect_left(divisors, True, lo=1, hi=last, key=fits_in)
        micro, one_less = batch_size // divisors[fewest], batch_size // divisors[fewest - 1]
        return LargestBatch(batch_size, divisors[fewest], *fitting[micro], micro, one_less)
    peak, limit = fitting[batch_size]
    sizes = [batch_size * 2**n for n in range(1, MAX_DOUBLINGS + 1)]
    too_large = next((size for size in sizes if not fits(size)), None)
    most = sizes[-1] if too_large is None else too_large // 2
    return LargestBatch(batch_size, 1, peak, limit, most, too_large)


def _with_batch(config: RunConfig, batch_size: int, parts: int) -> RunConfig:
    same = batch_size == config.input.batch_size
    return dataclasses.replace(
        config,
        input=dataclasses.replace(config.input, batch_size=batch_size),
        optim=dataclasses.replace(config.optim, grad_accum_steps=parts),
        total=config.total if same else LONG_RUN,
    )


# Overrides that reduce the memory of a step, the cheapest first.
SMALLER = (
    ("model.remat=dots",),
    ("model.remat=full",),
    ("model.remat=full", "optim.grad_accum_steps=4"),
    ("model.remat=full", "mesh.data=1", "mesh.fsdp=-1"),
    ("model.remat=full", "mesh.data=1", "mesh.fsdp=-1", "optim.grad_accum_steps=4"),
    ("model.remat=full", "mesh.data=1", "mesh.fsdp=-1", "optim.grad_accum_steps=16"),
)


def smaller(overrides: list[str], name: str, screen: Screen) -> str:
    """A sentence about the first of SMALLER that fits, if any."""
    several = len(topology.devices(name)) > 1
    tries = [more for more in SMALLER if several or "mesh.fsdp=-1" not in more]
    for number, more in enumerate(tries):
        screen.say(f"does it fit with {' '.join(more)}? ({number + 1} of {len(tries)})")
        try:
            config = load([*overrides, "model.scan=true", *more])
            planned = forecast(config, name, compiled=True)
        except UserError as error:
            screen.say(f"  {str(error).splitlines()[0]}")
            continue
        flags_ = " ".join(f"--config.{override}" for override in ("model.scan=true", *more))
        return f"It fits, in {format_bytes(planned.memory.peak or 0)} of each device, with {flags_}"
    return ""


FLAGS = flags.FLAGS


def load(overrides: list[str]) -> RunConfig:
    """The config for the planned devices, with the counts of its data where they can be read."""
    on_cpu = (lambda: False) if FLAGS.topology else None
    config = adapt.load(FLAGS.config, overrides, on_cpu=on_cpu)
    c = config.input
    if None not in (c.num_examples, c.num_classes):
        return config
    subset: Any = dict.fromkeys(("subset_fraction", "subset_examples", "subset_per_class"))
    try:
        source = examples.source(dataclasses.replace(c, **subset))
    except UserError:
        return config
    c = dataclasses.replace(c, num_examples=source.num_examples, num_classes=source.num_classes)
    return dataclasses.replace(config, input=c)


def main(_: list[str]) -> None:
    """The command."""
    overrides = list(FLAGS.config_override)
    config = load(overrides)
    price, gib, refuse = FLAGS.chip_hour_price, FLAGS.memory_gib, command.refuse_flags
    refuse("chip_hour_price", when=not FLAGS.topology, rule="needs --topology.")
    largest = FLAGS.largest_batch
    refuse("largest_batch", when=largest and not FLAGS.compile, rule="cannot be with --nocompile.")
    refuse("memory_gib", when=not FLAGS.largest_batch, rule="needs --largest_batch.")
    if FLAGS.topology:
        topology.check(FLAGS.topology)
        # jax would cache programs for absent devices, and not read them.
        jax.config.update("jax_enable_compilation_cache", False)
    else:
        compilation_cache.use()
    screen = Screen(sys.stderr)
    try:
        if FLAGS.largest_batch:
            mesh = topology.mesh(FLAGS.topology, config.mesh)
            largest = largest_batch(
                config,
                mesh,
                lambda c: forecast(c, FLAGS.topology, compiled=True).memory,
                there=None if gib is None else int(gib * 2**30),
                say=screen.say,
            )
            print(json.dumps(largest._asdict())) if FLAGS.json else _print(largest.rows())
            return
        if FLAGS.compile:
            screen.say("compiling ...")
        planned = forecast(config, FLAGS.topology, compiled=FLAGS.compile)
    except DoesNotFit as error:
        hint = smaller(overrides, FLAGS.topology, screen) if FLAGS.topology else ""
        hint = hint or "Nothing that was tried fits: take more chips."
        raise UserError(f"{error}\n{hint}") from error
    if FLAGS.json:
        print(as_json(planned, price=price))
        return
    _print(list(rows(planned, price=price)))


def _print(lines: list[Row]) -> None:
    print(*aligned(["", ""], lines, left={0, 1})[1:], sep="\n")


if __name__ == "__main__":
    command.define_config(configs.fields)
    flags.DEFINE_string(
        "topology",
        None,
        "TPUs, such as v5e:16x16, or GPUs, such as h100:2x8; default: the local devices.",
    )
    flags.DEFINE_bool("compile", True, "Compile the step; else use shapes alone.")
    flags.DEFINE_float("chip_hour_price", None, "Price of a chip-hour, in any currency.", 0)
    flags.DEFINE_bool(
        "largest_batch",
        False,
        "Only find the fewest microbatches with which the batch fits, and the largest batch.",
    )
    flags.DEFINE_float("memory_gib", None, "Memory for --largest_batch; default: a device's.", 0)
    flags.DEFINE_bool("json", False, "Print all figures as one JSON object.")
    command.run(main)
