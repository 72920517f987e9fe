"""A forecast as a table for people, and as JSON for programs."""

import dataclasses
import json
from collections.abc import Iterator

from vit_jax.core.screen import format_bytes, format_count, format_duration
from vit_jax.plan import published
from vit_jax.plan.forecast import SECS_A_DAY, Forecast

TOO_LITTLE = "it will hardly fit; without --nocompile the plan tries what would"
Row = tuple[str, str]  # label and value


def rows(forecast: Forecast, *, price: float | None) -> Iterator[Row]:
    """Rows of the table; price: of a chip-hour. Empty rows separate its parts."""
    model = forecast.model
    axes = " x ".join(f"{axis} {size}" for axis, size in forecast.mesh.items())
    where = f"{forecast.topology}: " if forecast.topology else ""
    steps = f"{forecast.steps:,} steps of {forecast.batch_size:,} images"
    yield (
        "devices",
        f"{where}{forecast.devices:,} x {forecast.device_kind}{f', {axes}' if axes else ''}",
    )
    yield "hosts", f"{forecast.hosts:,}"
    yield "", ""
    yield "model", f"{model.name}, {format_count(model.parameters)} parameters"
    yield "an image", f"{format_count(model.forward_flops)}FLOPs forward, in matrix products"
    yield "the run", f"{steps}: {_flops(forecast.exaflops)}"
    yield "", ""
    yield from _memory(forecast)
    yield "", ""
    yield from _hosts(forecast)
    yield "", ""
    yield from _time(forecast)
    yield from _cost(forecast, price)
    yield from _paper(forecast)
    if forecast.compile_secs is not None:
        cached = ", for an earlier plan (--nocache compiles anew)" if forecast.from_cache else ""
        yield "compiled in", f"{forecast.compile_secs:.1f} s{cached}"


def _memory(forecast: Forecast) -> Iterator[Row]:
    memory, taken = forecast.memory, forecast.memory.peak
    yield "a device holds", ""
    yield "  parameters", size(memory.parameters)
    yield "  optimizer", size(memory.optimizer)
    yield "  average", size(memory.average)
    if taken is not None:
        yield "  gradients, activations", size(taken - memory.state)
        yield "  peak", size(taken)
    elif memory.activations is not None:
        yield "  activations, about", size(memory.activations)
        taken = memory.state + memory.activations
    if memory.there is not None:
        yield "  of", size(memory.there)
        free = memory.there - (taken or memory.state)
        yield "  free", size(free) + ("" if free >= 0 else f": {TOO_LITTLE}")
    if forecast.sent is not None:
        yield "", ""
        yield "a device sends in a step", "" if any(forecast.sent.values()) else "nothing"
        for kind, nbytes in sorted(forecast.sent.items()):
            yield f"  {kind}", size(nbytes)


def _time(forecast: Forecast) -> Iterator[Row]:
    time = forecast.time
    yield "a step takes", ""
    yield "  matrix products", _ms(time.matrix)
    yield "  memory", _ms(time.hbm)
    yield "  interconnect", _ms(time.interconnect)
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


def _paper(forecast: Forecast) -> Iterator[Row]:
    if paper := published.compare(forecast):
        least = "at least " if forecast.time.cycles is None else ""
        ours = "" if paper.ratio is None else f"; this plan: {least}{paper.ratio:.2f} x"
        yield "the paper", f"{paper.core_days:,g} TPUv3-core-days (table 2){ours}"


def _cost(forecast: Forecast, price: float | None) -> Iterator[Row]:
    least = "at least " if forecast.time.cycles is None else ""
    if forecast.mfu is not None:
        yield "MFU", f"{forecast.mfu:.0%}"
    if forecast.days is not None:
        yield "time", least + format_duration(forecast.days * SECS_A_DAY)
    if forecast.chip_hours is not None and forecast.core_days is not None:
        hours = f"{least}{forecast.chip_hours:,.0f}"
        yield "chip-hours", f"{hours} ({forecast.core_days:,.1f} TPU-core-days)"
        if price is not None:
            yield "cost", f"{least}{forecast.chip_hours * price:,.0f}, at {price:g} a chip-hour"


def size(nbytes: float) -> str:
    """Bytes formatted by format_bytes, aligned at the unit."""
    number, unit = format_bytes(nbytes).split()
    return f"{number:>8} {unit}"


def _flops(exaflops: float) -> str:
    return (
        f"{format_count(exaflops * 1e18)}FLOPs" if exaflops < 1e-3 else f"{exaflops:,.4g} exaFLOPs"
    )


def _ms(secs: float | None) -> str:
    return f"{'-':>8}" if secs is None else f"{secs * 1e3:8.1f} ms"


def as_json(forecast: Forecast, *, price: float | None) -> str:
    """The forecast and figures derived from it as JSON; price: of a chip-hour."""
    derived = ("exaflops", "days", "chip_hours", "core_days", "mfu", "images_per_host_second")
    document = dataclasses.asdict(forecast) | {name: getattr(forecast, name) for name in derived}
    hours = forecast.chip_hours
    document["cost"] = None if price is None or hours is None else hours * price
    document["host"] = forecast.host._asdict()
    paper = published.compare(forecast)
    document["paper"] = paper and paper._asdict()
    document["time"] |= {"roofline": forecast.time.roofline, "estimate": forecast.time.estimate}
    return json.dumps(document, indent=2)
