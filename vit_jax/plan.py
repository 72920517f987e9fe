"""What a run takes, before it is paid for.

    python -m vit_jax.plan --config configs/vit_l16_i21k.py --topology v5e:16x16

Compiles the step of the config for TPUs that are not there (pip install libtpu), or for the devices
here, and says what it found: memory, traffic, an estimate of time. Reads no data. --nocompile says
in seconds what shapes and shardings alone tell.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator

import jax
from absl import flags

from vit_jax import build, compilation_cache
from vit_jax import config as configs
from vit_jax.config import RunConfig
from vit_jax.core import command
from vit_jax.core.errors import UserError
from vit_jax.planning import topology
from vit_jax.planning.compiled import DoesNotFit
from vit_jax.planning.forecast import SECS_A_DAY, Forecast, forecast
from vit_jax.screen import Screen, count, duration

UNITS = {"GiB": 2**30, "MiB": 2**20}
# What makes a step smaller, the cheapest first.
SMALLER = (
    ("model.remat=dots",),
    ("model.remat=full",),
    ("model.remat=full", "optim.accumulate=4"),
    ("model.remat=full", "mesh.data=1", "mesh.fsdp=-1"),
    ("model.remat=full", "mesh.data=1", "mesh.fsdp=-1", "optim.accumulate=4"),
    ("model.remat=full", "mesh.data=1", "mesh.fsdp=-1", "optim.accumulate=16"),
)


def plan(config: RunConfig, name: str | None, *, compiled: bool, anew: bool) -> Forecast:
    """What the run takes on a topology, or on the devices here.

    Raises:
      UserError: config or topology are wrong, or (DoesNotFit) the step does not fit.
    """
    mesh = topology.mesh(name, config.mesh) if name else build.mesh(config.mesh)
    return forecast(config, mesh, topology=name, compiled=compiled, anew=anew)


def smaller(overrides: list[str], name: str, screen: Screen) -> str:
    """Says which of SMALLER are the first that fit; "" if none does."""
    for number, more in enumerate(SMALLER):
        screen.say(f"does it fit with {' '.join(more)}? ({number + 1} of {len(SMALLER)})")
        try:
            found = plan(
                configs.load(FLAGS.config, [*overrides, "model.scan=true", *more]),
                name,
                compiled=True,
                anew=not FLAGS.cache,
            )
        except UserError as error:
            screen.say(f"  {str(error).splitlines()[0]}")
            continue
        flags_ = " ".join(f"--config.{override}" for override in ("model.scan=true", *more))
        return f"It fits, in {_size(found.memory.peak or 0).strip()} of each device, with {flags_}"
    return ""


Row = tuple[str, str]  # what, and how much


def rows(found: Forecast, *, dollars: float | None) -> Iterator[Row]:
    """The table. An empty row stands between its parts."""
    model = found.model
    axes = " x ".join(f"{axis} {size}" for axis, size in found.mesh.items())
    where = f"{found.topology}: " if found.topology else ""
    steps = f"{found.steps:,} steps of {found.batch_size:,} images"
    yield "devices", f"{where}{found.devices:,} x {found.device_kind}{f', {axes}' if axes else ''}"
    yield "hosts", f"{found.hosts:,}"
    yield "", ""
    yield "model", f"{model.name}, {count(model.parameters)} parameters"
    yield "an image", f"{count(model.forward_flops)}FLOPs forward, in matrix products"
    yield "the run", f"{steps}: {found.exaflops:,.4g} exaFLOPs"
    yield "", ""
    yield from _memory(found)
    yield "", ""
    yield from _time(found)
    yield from _cost(found, dollars)
    if found.compile_secs is not None:
        cached = ", for an earlier plan (--nocache compiles anew)" if found.from_cache else ""
        yield "compiled in", f"{found.compile_secs:.1f} s{cached}"


def _memory(found: Forecast) -> Iterator[Row]:
    memory, taken = found.memory, found.memory.peak
    yield "a device holds", ""
    yield "  parameters", _size(memory.parameters)
    yield "  optimizer", _size(memory.optimizer)
    yield "  average", _size(memory.average)
    if taken is not None:
        yield "  gradients, activations", _size(taken - memory.state)
        yield "  peak", _size(taken)
    elif memory.activations is not None:
        yield "  activations, about", _size(memory.activations)
        taken = memory.state + memory.activations
    if memory.there is not None:
        yield "  of", _size(memory.there)
        yield "  free", _size(memory.there - (taken or memory.state))
    yield "a checkpoint", _size(found.saved_bytes)
    if found.sent is not None:
        yield "", ""
        yield "a device sends in a step", "" if any(found.sent.values()) else "nothing"
        for kind, nbytes in sorted(found.sent.items()):
            yield f"  {kind}", f"{nbytes / 1e9:.3f} GB"


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


def _cost(found: Forecast, dollars: float | None) -> Iterator[Row]:
    least, most = ("at least ", "at most ") if found.time.cycles is None else ("", "")
    if found.images_per_host_second is not None:
        yield "a host reads", f"{most}{found.images_per_host_second:,.0f} images/s"
    if found.mfu is not None:
        yield "MFU", f"{found.mfu:.0%}"
    if found.days is not None:
        yield "time", least + duration(found.days * SECS_A_DAY)
    if found.chip_hours is not None and found.core_days is not None:
        hours = f"{least}{found.chip_hours:,.0f}"
        yield "chip-hours", f"{hours} ({found.core_days:,.1f} TPU-core-days)"
        if dollars is not None:
            yield "cost", f"{least}{found.chip_hours * dollars:,.0f}, at {dollars:g} a chip-hour"


def _size(nbytes: float) -> str:
    unit = "GiB" if abs(nbytes) >= UNITS["GiB"] / 10 else "MiB"
    return f"{nbytes / UNITS[unit]:8.2f} {unit}"


def _ms(secs: float | None) -> str:
    return f"{'-':>8}" if secs is None else f"{secs * 1e3:8.1f} ms"


def as_json(found: Forecast) -> str:
    """All of it, and what follows from it."""
    derived = ("exaflops", "days", "chip_hours", "core_days", "mfu", "images_per_host_second")
    document = dataclasses.asdict(found) | {name: getattr(found, name) for name in derived}
    document["time"] |= {"roofline": found.time.roofline, "estimate": found.time.estimate}
    return json.dumps(document, indent=2)


FLAGS = flags.FLAGS


def main(arguments: list[str]) -> None:
    """The command."""
    command.no_more(arguments)
    overrides = list(FLAGS.config_override)
    config = configs.load(FLAGS.config, overrides)
    if FLAGS.chip_hour_price is not None and not FLAGS.topology:
        raise UserError("--chip_hour_price needs --topology, which says how many chips.")
    if FLAGS.topology:  # jax would keep programs for devices that are not there, and not read them
        jax.config.update("jax_enable_compilation_cache", False)
    else:
        compilation_cache.use()
    screen = Screen(sys.stderr)
    try:
        if FLAGS.compile:
            screen.say("compiling ...")
        found = plan(config, FLAGS.topology, compiled=FLAGS.compile, anew=not FLAGS.cache)
    except DoesNotFit as error:
        hint = smaller(overrides, FLAGS.topology, screen) if FLAGS.topology else ""
        hint = hint or "Nothing that was tried fits: take more chips."
        raise UserError(f"{error}\n{hint}") from error
    if FLAGS.json:
        print(as_json(found))
        return
    lines = list(rows(found, dollars=FLAGS.chip_hour_price))
    width = max(len(what) for what, _ in lines)
    for what, said in lines:
        print(f"{what:{width}}  {said}".rstrip())


if __name__ == "__main__":
    command.define_config()
    flags.DEFINE_string("topology", None, "TPUs, such as v5e:16x16; default: the devices here.")
    flags.DEFINE_bool("compile", True, "Compile the step; else only what shapes tell.")
    flags.DEFINE_bool("cache", True, "Take from the cache what an earlier plan has compiled.")
    flags.DEFINE_float("chip_hour_price", None, "Of one chip, in any currency.", lower_bound=0)
    flags.DEFINE_bool("json", False, "All figures as one JSON object.")
    command.run(main)
