"""The blocks by one compiled loop or unrolled, under each remat policy: time and memory.

    python -m benchmarks.scan_or_unrolled --model ViT-Ti/16 --batch_size 8
    JAX_PLATFORMS=cpu python -m benchmarks.scan_or_unrolled --model ViT-S/16 --batch_size 1024 \
        --topology v5e:2x2

Compiles the real training step for every variant. On the devices that are there the variants then
take turns, and the median time of a step is reported. With --topology, which needs no TPU but
`pip install libtpu`, it only compiles: memory is exact, and `mega_cycles` is the sum of the
compiler's own estimates (none for collectives), good for ranking on one chip and nothing more.
Appends a row for each variant to benchmarks/results/scan_or_unrolled.csv.
"""

from __future__ import annotations

import os
import re
import statistics
import time
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import flags
from jax.experimental import topologies
from jax.sharding import Mesh

from benchmarks import rows
from vit_jax import build, models, step
from vit_jax import config as configs
from vit_jax.core import command
from vit_jax.dist import mesh as meshes
from vit_jax.nn.stack import REMAT_POLICIES
from vit_jax.state import Layout

_MODEL = flags.DEFINE_string("model", "ViT-Ti/16", "Name of the model.")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 8, "Global batch size.")
_DTYPE = flags.DEFINE_enum("dtype", "float32", ["float32", "bfloat16"], "model.dtype.")
_IMAGE_SIZE = flags.DEFINE_integer("image_size", 224, "Pixels, both sides.")
_NUM_CLASSES = flags.DEFINE_integer("num_classes", 1000, "Of the head.")
_REMATS = flags.DEFINE_multi_enum("remat", list(REMAT_POLICIES), list(REMAT_POLICIES), "Which.")
_ROUNDS = flags.DEFINE_integer("rounds", 5, "Steps of each variant that are measured.")
_TOPOLOGY = flags.DEFINE_string("topology", None, "Only compile, for TPUs such as v5e:2x2.")

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_LOOP = re.compile(r"\bwhile\(.*\bbody=%?([\w.-]+)")


class Variant(NamedTuple):
    """A compiled step and what is known of it."""

    scan: bool
    remat: str
    compiled: Any
    layout: Layout
    batch: step.Batch
    compile_secs: float


def main(_: list[str]) -> None:
    """Measures, prints and records."""
    mesh = _topology_mesh(_TOPOLOGY.value) if _TOPOLOGY.value else build.mesh(configs.MeshConfig())
    variants = [_compile(mesh, scan, remat) for remat in _REMATS.value for scan in (False, True)]
    times = {} if _TOPOLOGY.value else _step_secs(variants)
    for v in variants:
        memory = v.compiled.memory_analysis()
        row = {
            "commit": rows.commit("vit_jax"),
            "device": _device(mesh),
            "versions": rows.versions("jax", *(["libtpu"] if _TOPOLOGY.value else [])),
            "model": _MODEL.value,
            "dtype": _DTYPE.value,
            "image_size": _IMAGE_SIZE.value,
            "batch_size": _BATCH_SIZE.value,
            "scan": v.scan,
            "remat": v.remat,
            "compile_secs": round(v.compile_secs, 1),
            "step_ms": round(1e3 * times[v[:2]], 1) if times else "",
            "temp_mib": round(memory.temp_size_in_bytes / 2**20, 1),
            "mega_cycles": round(_cycles(v), 2) if _TOPOLOGY.value else "",
        }
        print(row)
        rows.append("scan_or_unrolled", row)


def _compile(mesh: Mesh, scan: bool, remat: str) -> Variant:
    size = _IMAGE_SIZE.value
    config = configs.resolve(
        {
            "model": {"name": _MODEL.value, "dtype": _DTYPE.value, "scan": scan, "remat": remat},
            "input": {"preprocess": f"decode|resize({size})", "batch_size": _BATCH_SIZE.value},
            "optim": {"weight_decay": 0.1},
            "total": {"steps": 1000},
        }
    )
    schedule = build.schedule(config.optim, build.plan(config, num_examples=1000))
    model = build.model(config, num_classes=_NUM_CLASSES.value)
    layout = build.layout(config, model.make, schedule, mesh)
    batch = step.batch_layout(
        mesh, batch_size=_BATCH_SIZE.value, image_size=(size, size), max_labels=1
    )
    update = step.make_update(
        layout,
        build.objective(config, num_classes=_NUM_CLASSES.value),
        build.rates(config.optim, schedule),
        config.seed,
    )
    started = time.perf_counter()
    compiled = step.compile_update(update, layout, batch)
    return Variant(scan, remat, compiled, layout, batch, time.perf_counter() - started)


def _step_secs(variants: list[Variant]) -> dict[tuple[bool, str], float]:
    """Median seconds of a step by (scan, remat); the variants take turns."""
    secs: dict[tuple[bool, str], list[float]] = {v[:2]: [] for v in variants}
    state = variants[0].layout.init(0)  # the same arrays for all: each takes a step on with them
    batch = {
        name: jax.device_put(np.zeros(x.shape, x.dtype), x.sharding)
        for name, x in variants[0].batch.items()
    }
    jax.block_until_ready((state, batch))
    for turn in range(1 + _ROUNDS.value):
        for v in variants:
            started = time.perf_counter()
            state, _ = jax.block_until_ready(v.compiled(state, batch))
            if turn:  # the first is slower
                secs[v[:2]].append(time.perf_counter() - started)
    return {name: statistics.median(values) for name, values in secs.items()}


def _topology_mesh(name: str) -> Mesh:
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    devices = topologies.get_topology_desc(platform="tpu", topology_name=name).devices
    return meshes.make_mesh(replica=1, data=-1, fsdp=1, tensor=1, devices=devices)


def _device(mesh: Mesh) -> str:
    kind = mesh.devices.flat[0].device_kind
    if _TOPOLOGY.value:
        return f"compiled for {mesh.size} x {kind}"
    return rows.cpu() if kind == "cpu" else f"{mesh.size} x {kind}"


def _cycles(v: Variant) -> float:
    # The loops of a step without accumulation are the scans over the layers, there and back.
    depth = models.spec(_MODEL.value).depth
    return mega_cycles(v.compiled.as_text(), loop_length=depth if v.scan else 1)


def mega_cycles(hlo: str, loop_length: int) -> float:
    """Estimated cycles of a program whose loops all run `loop_length` times."""
    own: dict[str, int] = {}
    loops: dict[str, list[str]] = {}
    entry = here = ""
    for line in hlo.splitlines():
        if line.endswith("{") and not line.startswith(" "):  # a computation begins
            here = line.removeprefix("ENTRY ").split()[0].lstrip("%")
            entry = here if line.startswith("ENTRY ") else entry
        own[here] = own.get(here, 0) + sum(map(int, _CYCLES.findall(line)))
        loops.setdefault(here, []).extend(_LOOP.findall(line))

    def total(name: str) -> int:
        return own[name] + loop_length * sum(map(total, loops[name]))

    return total(entry) / 1e6


if __name__ == "__main__":
    command.run(main)
