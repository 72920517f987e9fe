"""The real training step, compiled: for devices that are there, or for TPUs that are not."""

from __future__ import annotations

import importlib.util
import os
import re
import time
from typing import Any, NamedTuple

from jax.experimental import topologies
from jax.sharding import Mesh

from vit_jax import build, step
from vit_jax.config import MeshConfig, RunConfig
from vit_jax.core.errors import UserError
from vit_jax.dist import mesh as meshes
from vit_jax.dist.hlo import instructions
from vit_jax.state import Layout

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')


class CompiledStep(NamedTuple):
    """A compiled step and what it was made from."""

    compiled: Any
    layout: Layout
    batch: step.Batch
    forward_flops: int  # of one image
    compile_secs: float


def compile_step(config: RunConfig, mesh: Mesh) -> CompiledStep:
    """The step of a run whose number of classes is declared (input.num_classes)."""
    num_classes, batch_size = config.input.num_classes, config.input.batch_size
    assert num_classes is not None
    schedule = build.schedule(config.optim, build.plan(config, num_examples=batch_size))
    model = build.model(config, num_classes=num_classes)
    layout = build.layout(config, model.make, schedule, mesh)
    batch = step.batch_layout(
        mesh, batch_size=batch_size, image_size=model.preprocess.image_size, max_labels=1
    )
    update = step.make_update(
        layout,
        build.objective(config, num_classes=num_classes),
        build.rates(config.optim, schedule),
        config.seed,
    )
    started = time.perf_counter()
    compiled = step.compile_update(update, layout, batch)
    secs = time.perf_counter() - started
    return CompiledStep(compiled, layout, batch, model.info.forward_flops, secs)


def topology_mesh(name: str, c: MeshConfig) -> Mesh:
    """A mesh over the TPUs of a topology such as "v5e:16x16"; needs libtpu, but no TPU."""
    if importlib.util.find_spec("libtpu") is None:
        raise UserError("To compile for TPUs that are not there: pip install libtpu.")
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # else a lock stops a second process
    # Two cores of a v4 chip act as one device.
    options = {"chip_config_name": "megacore"} if name.startswith("v4:") else {}
    topology = topologies.get_topology_desc(platform="tpu", topology_name=name, **options)
    return meshes.make_mesh(
        replica=c.replica, data=c.data, fsdp=c.fsdp, tensor=c.tensor, devices=topology.devices
    )


def mega_cycles(hlo: str) -> float:
    """The compiler's own estimates for a TPU, summed; it has none for collectives."""
    cycles = (
        one.runs * int(found[1])
        for one in instructions(hlo)
        if not one.fused and (found := _CYCLES.search(one.text))
    )
    return sum(cycles) / 1e6
