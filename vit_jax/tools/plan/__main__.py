"""Plans a run before any device time is spent.

    vit-jax plan --config configs/vit_l16_i21k.py --topology v5e:16x16

Compiles the step of the config for TPUs that are not here (pip install libtpu), for GPUs that are
not (--topology h100:2x8; docs/plan.md), or for the devices here, and prints memory, traffic and an
estimate of time. Reads no data. --nocompile prints in seconds what follows from shapes and
shardings alone.
"""

import json
import math
import sys

import jax
from absl import flags
from jax.sharding import Mesh

from vit_jax import config as configs
from vit_jax.config import RunConfig
from vit_jax.core import command, compilation_cache
from vit_jax.core.errors import UserError
from vit_jax.core.screen import Screen, format_bytes
from vit_jax.run.parts import inputs
from vit_jax.tools.plan import topology
from vit_jax.tools.plan.compiled import DoesNotFit
from vit_jax.tools.plan.forecast import Forecast, forecast
from vit_jax.tools.plan.largest_batch import LargestBatch, largest_batch
from vit_jax.tools.plan.table import as_json, rows

# Overrides that reduce the memory of a step, the cheapest first.
SMALLER = (
    ("model.remat=dots",),
    ("model.remat=full",),
    ("model.remat=full", "optim.grad_accum_steps=4"),
    ("model.remat=full", "mesh.data=1", "mesh.fsdp=-1"),
    ("model.remat=full", "mesh.data=1", "mesh.fsdp=-1", "optim.grad_accum_steps=4"),
    ("model.remat=full", "mesh.data=1", "mesh.fsdp=-1", "optim.grad_accum_steps=16"),
)


def plan(config: RunConfig, name: str | None, *, compiled: bool, anew: bool) -> Forecast:
    """The forecast of the run on a topology, or on the devices here. Raises what forecast does."""
    return forecast(config, mesh(config, name), topology=name, compiled=compiled, anew=anew)


def mesh(config: RunConfig, name: str | None) -> Mesh:
    """The devices of a topology, or those here."""
    return topology.mesh(name, config.mesh) if name is not None else inputs.mesh(config.mesh)


def largest(config: RunConfig, name: str | None, screen: Screen) -> LargestBatch:
    """The largest batch that fits a topology, or the devices here."""
    gib = FLAGS.memory_gib
    return largest_batch(
        config,
        mesh(config, name),
        lambda tried: plan(tried, name, compiled=True, anew=not FLAGS.cache).memory,
        there=None if gib is None else int(gib * 2**30),
        say=screen.say,
    )


def smaller(overrides: list[str], name: str, screen: Screen) -> str:
    """A sentence about the first of SMALLER that fits; "" if none does."""
    several = len(topology.devices(name)) > 1
    tries = [more for more in SMALLER if several or "mesh.fsdp=-1" not in more]
    for number, more in enumerate(tries):
        screen.say(f"does it fit with {' '.join(more)}? ({number + 1} of {len(tries)})")
        try:
            config = configs.load(FLAGS.config, [*overrides, "model.scan=true", *more])
            planned = plan(config, name, compiled=True, anew=not FLAGS.cache)
        except UserError as error:
            screen.say(f"  {str(error).splitlines()[0]}")
            continue
        flags_ = " ".join(f"--config.{override}" for override in ("model.scan=true", *more))
        return f"It fits, in {format_bytes(planned.memory.peak or 0)} of each device, with {flags_}"
    return ""


FLAGS = flags.FLAGS


def main(_: list[str]) -> None:
    """The command."""
    overrides = list(FLAGS.config_override)
    config = configs.load(FLAGS.config, overrides)
    price = FLAGS.chip_hour_price
    if price is not None and not math.isfinite(price):
        raise UserError(f"--chip_hour_price={price}: give a number, such as 1.2.")
    if price is not None and FLAGS.topology is None:
        raise UserError("--chip_hour_price needs --topology, which says how many chips.")
    if FLAGS.largest_batch and not FLAGS.compile:
        raise UserError("--largest_batch needs the compiler: leave out --nocompile.")
    if FLAGS.memory_gib is not None and not 0 < FLAGS.memory_gib < math.inf:
        raise UserError(f"--memory_gib={FLAGS.memory_gib:g}: give a number above 0.")
    if FLAGS.memory_gib is not None and not FLAGS.largest_batch:
        raise UserError("--memory_gib is read by --largest_batch alone: give both, or neither.")
    if FLAGS.topology:
        topology.check(FLAGS.topology)
        # jax would cache programs for absent devices, and not read them.
        jax.config.update("jax_enable_compilation_cache", False)
    else:
        compilation_cache.use()
    screen = Screen(sys.stderr)
    try:
        if FLAGS.largest_batch:
            found = largest(config, FLAGS.topology, screen)
            print(json.dumps(found._asdict())) if FLAGS.json else _print(found.rows())
            return
        if FLAGS.compile:
            screen.say("compiling ...")
        planned = plan(config, FLAGS.topology, compiled=FLAGS.compile, anew=not FLAGS.cache)
    except DoesNotFit as error:
        hint = smaller(overrides, FLAGS.topology, screen) if FLAGS.topology else ""
        hint = hint or "Nothing that was tried fits: take more chips."
        raise UserError(f"{error}\n{hint}") from error
    if FLAGS.json:
        print(as_json(planned, price=price))
        return
    _print(list(rows(planned, price=price)))


def _print(lines: list[tuple[str, str]]) -> None:
    width = max(len(what) for what, _ in lines)
    for what, said in lines:
        print(f"{what:{width}}  {said}".rstrip())


if __name__ == "__main__":
    command.define_config(configs.fields())
    flags.DEFINE_string(
        "topology",
        None,
        "TPUs, such as v5e:16x16, or GPUs, such as h100:2x8; default: the devices here.",
    )
    flags.DEFINE_bool("compile", True, "Compile the step; else only what shapes tell.")
    flags.DEFINE_bool("cache", True, "Take from the cache what an earlier plan has compiled.")
    flags.DEFINE_float("chip_hour_price", None, "Of one chip, in any currency.", lower_bound=0)
    flags.DEFINE_bool(
        "largest_batch",
        False,
        "Only find the fewest microbatches with which the batch fits, and the largest batch.",
    )
    flags.DEFINE_float(
        "memory_gib", None, "With --largest_batch: of a device, if not all it has.", lower_bound=0
    )
    flags.DEFINE_bool("json", False, "All figures as one JSON object.")
    command.run(main)
