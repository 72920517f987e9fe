"""A forecast as a table for people, and as JSON for programs."""

import dataclasses
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from vit_jax.core.screen import format_bytes, format_count, format_duration
from vit_jax.methods.table import SUPERVISED
from vit_jax.run.announce import forward
from vit_jax.tools.plan.forecast import SECS_A_DAY, Forecast

TOO_LITTLE = "it will hardly fit; without --nocompile the plan tries what would"
Row = tuple[str, str]  # label and value


class PaperRun(NamedTuple):
    """A pre-training of the paper.

    Attributes:
      model: its name.
      images: millions of images seen.
      exaflops: exaFLOPs of matrix products (table 6).
      core_days: TPUv3 core-days (table 2).
    """

    model: str
    images: float
    exaflops: float
    core_days: float


# JFT has 303 M images, ImageNet-21k 14.2 M. Of ViT-L/16 on ImageNet-21k table 3 has 30 and 90
# epochs, and table 2 does not say which it lists. At 90 it would have run at 38 % of the chips'
# rate, between the other two (43 and 32 %); at 30 at 13 %. Table 6 does not list it; its exaFLOPs
# follow the same rule.
RUNS = (
    PaperRun("ViT-H/14", 14 * 303, 4262, 2500),
    PaperRun("ViT-L/16", 14 * 303, 1567, 680),
    PaperRun("ViT-L/16", 90 * 14.2, 472, 230),
)


def rows(forecast: Forecast, *, price: float | None) -> Iterator[Row]:
    """Rows of the table; price: of a chip-hour. Empty rows separate its parts."""
    model = forecast.model
    axes = " x ".join(f"{axis} {size}" for axis, size in forecast.mesh.items())
    where = f"{forecast.topology}: " if forecast.topology else ""
    steps = f"{forecast.steps:,} steps of {forecast.batch_size:,} images"
    flops = f"{forecast.exaflops:,.4g} exaFLOPs"
    if forecast.exaflops < 1e-3:
        flops = f"{format_count(forecast.exaflops * 1e18)}FLOPs"
    yield (
        "devices",
        f"{where}{forecast.devices:,} x {forecast.device_kind}{f', {axes}' if axes else ''}",
    )
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
    if forecast.compile_secs is not None:
        cached = ", for an earlier plan (--nocache compiles anew)" if forecast.from_cache else ""
        yield "compiled in", f"{forecast.compile_secs:.1f} s{cached}"


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
        yield "  free", size(free) + ("" if free >= 0 else f": {TOO_LITTLE}")
    if forecast.sent is not None:
        yield "", ""
        yield "a device sends in a step", "" if any(forecast.sent.values()) else "nothing"
        for kind, nbytes in sorted(forecast.sent.items()):
            yield f"  {kind}", size(nbytes)
    if forecast.kernels is not None:
        yield "a device runs in a step", f"{forecast.kernels:,} kernels"
        yield "  that read and write", size(forecast.accessed or 0)


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
    if paper := paper_comparison(forecast):
        ours = "" if paper["ratio"] is None else f"; this plan: {least}{paper['ratio']:.2f} x"
        yield "the paper", f"{paper['core_days']:,g} TPUv3-core-days (table 2){ours}"


def paper_comparison(forecast: Forecast) -> dict[str, Any] | None:
    """The paper's TPUv3 core-days for the run that a forecast repeats, and the ratio to them.

    None if it repeats none; the ratio is None for other chips than TPUv3.
    """
    images = forecast.batch_size * forecast.steps / 1e6
    near = lambda a, b: abs(a / b - 1) <= 0.05
    for run in RUNS:
        same = near(images, run.images) and near(forecast.exaflops, run.exaflops)
        if forecast.model.name == run.model and same:
            ours = forecast.core_days if (forecast.topology or "").startswith("v3:") else None
            return {"core_days": run.core_days, "ratio": ours and ours / run.core_days}
    return None


def size(nbytes: float) -> str:
    """Bytes formatted by format_bytes, aligned at the unit."""
    number, unit = format_bytes(nbytes).split()
    return f"{number:>8} {unit}"


def _ms(secs: float | None) -> str:
    return f"{'-':>8}" if secs is None else f"{secs * 1e3:8.1f} ms"


def as_json(forecast: Forecast, *, price: float | None) -> str:
    """The forecast and figures derived from it as JSON; price: of a chip-hour."""
    derived = ("exaflops", "days", "chip_hours", "core_days", "mfu", "images_per_host_second")
    document = dataclasses.asdict(forecast) | {name: getattr(forecast, name) for name in derived}
    hours = forecast.chip_hours
    document["products"] = forecast.products._asdict()
    document["cost"] = None if price is None or hours is None else hours * price
    document["paper"] = paper_comparison(forecast)
    document["time"] |= {"roofline": forecast.time.roofline, "estimate": forecast.time.estimate}
    return json.dumps(document, indent=2)
