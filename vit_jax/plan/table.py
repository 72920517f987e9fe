"""A forecast as a table for people, and as JSON for programs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator

from vit_jax.core.formatting import format_bytes, format_count, format_duration
from vit_jax.plan import published
from vit_jax.plan.forecast import SECS_A_DAY, Forecast

TOO_LITTLE = "it will hardly fit; without --nocompile the plan tries what would"
Row = tuple[str, str]  # what, and how much


def rows(found: Forecast, *, price: float | None) -> Iterator[Row]:
    """The table; price: of a chip-hour. An empty row stands between its parts."""
    model = found.model
    axes = " x ".join(f"{axis} {size}" for axis, size in found.mesh.items())
    where = f"{found.topology}: " if found.topology else ""
    steps = f"{found.steps:,} steps of {found.batch_size:,} images"
    yield "devices", f"{where}{found.devices:,} x {found.device_kind}{f', {axes}' if axes else ''}"
    yield "hosts", f"{found.hosts:,}"
    yield "", ""
    yield "model", f"{model.name}, {format_count(model.parameters)} parameters"
    yield "an image", f"{format_count(model.forward_flops)}FLOPs forward, in matrix products"
    yield "the run", f"{steps}: {_flops(found.exaflops)}"
    yield "", ""
    yield from _memory(found)
    yield "", ""
    yield from _hosts(found)
    yield "", ""
    yield from _time(found)
    yield from _cost(found, price)
    yield from _paper(found)
    if found.compile_secs is not None:
        cached = ", for an earlier plan (--nocache compiles anew)" if found.from_cache else ""
        yield "compiled in", f"{found.compile_secs:.1f} s{cached}"


def _memory(found: Forecast) -> Iterator[Row]:
    memory, taken = found.memory, found.memory.peak
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
    if found.sent is not None:
        yield "", ""
        yield "a device sends in a step", "" if any(found.sent.values()) else "nothing"
        for kind, nbytes in sorted(found.sent.items()):
            yield f"  {kind}", size(nbytes)


def _time(found: Forecast) -> Iterator[Row]:
    time = found.time
    yield "a step takes", ""
    yield "  matrix products", _ms(time.matrix)
    yield "  memory", _ms(time.hbm)
    yield "  interconnect", _ms(time.interconnect)
    yield "  the compiler's cycles", _ms(time.cycles)
    yield "  at least, these together", _ms(time.roofline)
    if time.cycles is not None:
        yield "  estimate", f"{_ms(time.estimate)}, cycles and interconnect one after the other"


def _hosts(found: Forecast) -> Iterator[Row]:
    host = found.host
    yield "a checkpoint", size(found.saved_bytes)
    yield "a host needs", ""
    yield "  to save", size(host.saving_bytes)
    yield "  for batches", size(host.input_bytes)
    a_second = ""
    if found.images_per_host_second is not None:
        most = "at most " if found.time.cycles is None else ""
        a_second = f", {most}{found.images_per_host_second:,.0f} a second"
    yield "  to read", f"{host.images:,} images a step{a_second}"


def _paper(found: Forecast) -> Iterator[Row]:
    if paper := published.compare(found):
        least = "at least " if found.time.cycles is None else ""
        ours = "" if paper.ratio is None else f"; this plan: {least}{paper.ratio:.2f} x"
        yield "the paper", f"{paper.core_days:,g} TPUv3-core-days (table 2){ours}"


def _cost(found: Forecast, price: float | None) -> Iterator[Row]:
    least = "at least " if found.time.cycles is None else ""
    if found.mfu is not None:
        yield "MFU", f"{found.mfu:.0%}"
    if found.days is not None:
        yield "time", least + format_duration(found.days * SECS_A_DAY)
    if found.chip_hours is not None and found.core_days is not None:
        hours = f"{least}{found.chip_hours:,.0f}"
        yield "chip-hours", f"{hours} ({found.core_days:,.1f} TPU-core-days)"
        if price is not None:
            yield "cost", f"{least}{found.chip_hours * price:,.0f}, at {price:g} a chip-hour"


def size(nbytes: float) -> str:
    """As format_bytes, aligned at its unit."""
    number, unit = format_bytes(nbytes).split()
    return f"{number:>8} {unit}"


def _flops(exaflops: float) -> str:
    return (
        f"{format_count(exaflops * 1e18)}FLOPs" if exaflops < 1e-3 else f"{exaflops:,.4g} exaFLOPs"
    )


def _ms(secs: float | None) -> str:
    return f"{'-':>8}" if secs is None else f"{secs * 1e3:8.1f} ms"


def as_json(found: Forecast, *, price: float | None) -> str:
    """All of it, and what follows from it; price: of a chip-hour."""
    derived = ("exaflops", "days", "chip_hours", "core_days", "mfu", "images_per_host_second")
    document = dataclasses.asdict(found) | {name: getattr(found, name) for name in derived}
    hours = found.chip_hours
    document["cost"] = None if price is None or hours is None else hours * price
    document["host"] = found.host._asdict()
    paper = published.compare(found)
    document["paper"] = paper and paper._asdict()
    document["time"] |= {"roofline": found.time.roofline, "estimate": found.time.estimate}
    return json.dumps(document, indent=2)
