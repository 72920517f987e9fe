"""Attention forward and backward by each program of model.attention, at several lengths.

    python -m benchmarks.attention --shapes 197x16x64x16,577x16x64x8
    JAX_PLATFORMS=cpu python -m benchmarks.attention --topology v5e:2x2

A shape is tokens x heads x head size x images. On the local device the programs take turns, and the
median of the rounds is reported; programs that the device does not have are left out. With
--topology (docs/plan.md says what it needs) they are compiled for one chip that is not there. Then
memory is exact. For TPUs `mega_cycles` are the compiler's estimates, without the kernels, which
have none; `kernel_mega_cycles` are the bundles of their schedules, which the compiler writes out,
times their instances: neither counts waiting for memory. For GPUs `accessed_gb` are the bytes of
all kernels. Appends a row for each to benchmarks/results/attention.csv.
"""

import functools
import math
import os
import re
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from jax.extend.core import jaxprs_in_params
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from benchmarks import rows
from vit_jax.core import axes, command
from vit_jax.core.errors import UserError
from vit_jax.models.layers.kernels import choice, xla
from vit_jax.models.layers.kernels.xla import Projected, attend
from vit_jax.parallel.chips import TPUS
from vit_jax.tools.plan import hlo, topology
from vit_jax.tools.plan.hlo import mega_cycles

_SHAPES = flags.DEFINE_list(
    "shapes",
    ["197x16x64x16", "257x16x80x16", "577x16x64x8", "1025x16x64x4", "1370x16x80x4"],
    "Tokens x heads x head size x images.",
)
_DTYPE = flags.DEFINE_enum("dtype", "bfloat16", ["float32", "bfloat16"], "Of the arrays.")
_ROUNDS = flags.DEFINE_integer("rounds", 10, "Runs of each program that are measured.")

FLAGS = flags.FLAGS
Program = Callable[..., jax.Array]
_SCHEDULES = "schedule-analysis_final_bundles.txt"


def main(_: list[str]) -> None:
    """Measures, prints and records."""
    shapes = [parsed(text) for text in _SHAPES.value]
    dump = Path(tempfile.mkdtemp(prefix="attention_"))
    if FLAGS.topology and topology.check(FLAGS.topology) in TPUS:
        os.environ["LIBTPU_INIT_ARGS"] = f"--xla_jf_dump_to={dump} --xla_jf_dump_llo_text=true"
    try:
        device = topology.devices(FLAGS.topology)[0] if FLAGS.topology else jax.devices()[0]
        mesh = Mesh(np.array([device]), ("data",), axis_types=(AxisType.Auto,))
        with jax.set_mesh(mesh):
            for shape in shapes:
                _compare(shape, mesh, dump)
    finally:
        shutil.rmtree(dump, ignore_errors=True)


def parsed(text: str) -> tuple[int, ...]:
    """(images, tokens, heads, head size) of "197x16x64x8". UserError for anything else."""
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){3}", text):
        raise UserError(
            f"--shapes={text}: give tokens x heads x head size x images, such as 197x16x64x8."
        )
    tokens, num_heads, head_size, batch = map(int, text.split("x"))
    return batch, tokens, num_heads, head_size


def _compare(shape: tuple[int, ...], mesh: Mesh, dump: Path) -> None:
    batch, tokens, num_heads, head_size = shape
    about = {
        "tokens": tokens, "num_heads": num_heads, "head_size": head_size, "batch_size": batch,
        "dtype": _DTYPE.value,
    }  # fmt: skip
    local = FLAGS.topology is None
    asked = jax.ShapeDtypeStruct(shape, _DTYPE.value)
    taken = choice.choose(choice.AUTO, asked, jnp.dtype("float32"))
    plain = "xla" if tokens < choice.LONG else "xla in blocks"
    compiled, found = {}, {}
    for name, program in _programs(head_size).items():
        shutil.rmtree(dump, ignore_errors=True)
        dump.mkdir()
        traced = jax.jit(functools.partial(_both, program)).trace(*_abstract(shape, mesh))
        try:
            compiled[name] = traced.lower().compile()
        except jax.errors.JaxRuntimeError as error:
            print(f"{name}: {str(error)[:200]}")
            continue
        found[name] = _figures(compiled[name], traced.jaxpr.jaxpr, dump)
    times = _milliseconds(compiled, shape) if local else {}
    platform = mesh.devices.flat[0]
    for name, figures in found.items():
        auto = name == (plain if taken == choice.XLA else taken)
        row = {"program": name, "auto": auto, **about, **figures, "ms": times.get(name, "")}
        kind = None if platform.platform == "cpu" else platform.device_kind
        where = kind if local else f"compiled for {FLAGS.topology}"
        versions = "jax" if local else "jax libtpu" if platform.platform == "tpu" else "jax"
        rows.record("attention", "vit_jax/models/layers", versions, row, device=where)


def _programs(head_size: int) -> dict[str, Program]:
    """The programs that the devices have."""
    softmax = jnp.dtype("float32")
    found: dict[str, Program] = {
        "xla": lambda *arrays: attend(*arrays, softmax),
        "xla in blocks": lambda *arrays: xla.attend_in_blocks(*arrays, softmax),
    }
    attention = choice.Attention(head_size, _DTYPE.value, "float32")
    for name, kernel in choice.KERNELS.items():
        if kernel.runs_on(axes.target()) and kernel.refuses(attention) is None:
            found[name] = lambda *arrays, kernel=kernel: kernel.attend(
                Projected(*arrays, None), softmax
            )
    return found


def _both(program: Program, qkv: jax.Array, dy: jax.Array) -> Any:
    """Output, and the gradient of the projections [B, N, 3, H, K], as a block has them."""
    y, back = jax.vjp(lambda qkv: program(*(qkv[:, :, i] for i in range(3))), qkv)
    return y, back(dy)


def _abstract(shape: tuple[int, ...], mesh: Mesh) -> tuple[jax.ShapeDtypeStruct, ...]:
    one = NamedSharding(mesh, PartitionSpec())
    of = lambda *shape: jax.ShapeDtypeStruct(shape, _DTYPE.value, sharding=one)
    return of(*shape[:2], 3, *shape[2:]), of(*shape)


def _figures(compiled: Any, jaxpr: Any, dump: Path) -> dict[str, object]:
    text = compiled.as_text()
    platform = axes.target().platform
    figures: dict[str, object] = {
        "temp_mib": round(compiled.memory_analysis().temp_size_in_bytes / 2**20, 1),
        "mega_cycles": "", "kernel_mega_cycles": "", "accessed_gb": "",
    }  # fmt: skip
    if platform == "tpu":
        without = "\n".join(x for x in text.splitlines() if "tpu_custom_call" not in x)
        figures["mega_cycles"] = round(mega_cycles(without), 3)
        figures["kernel_mega_cycles"] = round(_of_kernels(jaxpr, dump) / 1e6, 3)
    if platform == "gpu":
        own = hlo.kernels(text)
        figures["accessed_gb"] = round(sum(k.runs * k.nbytes for k in own) / 1e9, 3)
    return figures


def _of_kernels(jaxpr: Any, dump: Path) -> int:
    """Cycles of Pallas kernels: the bundles of an instance, times the number of instances."""
    cycles = 0
    for name, instances in _kernels(jaxpr):
        (file,) = [f for f in dump.glob(f"*{_SCHEDULES}") if name in f.name]
        bundles = re.search(r"total scheduled bundles:\s*(\d+)", file.read_text())
        assert bundles is not None
        cycles += instances * int(bundles[1])
    return cycles


def _kernels(jaxpr: Any) -> list[tuple[str, int]]:
    found = []
    for e in jaxpr.eqns:
        if e.primitive.name == "pallas_call":
            found.append((e.params["name"], math.prod(e.params["grid_mapping"].grid)))
        found += [k for inside in jaxprs_in_params(e.params) for k in _kernels(inside)]
    return found


def _milliseconds(compiled: dict[str, Any], shape: tuple[int, ...]) -> dict[str, float]:
    """Medians; the programs take turns."""
    keys = jax.random.split(jax.random.key(0))
    qkv = jax.random.normal(keys[0], (*shape[:2], 3, *shape[2:]), _DTYPE.value)
    dy = jax.random.normal(keys[1], shape, _DTYPE.value)
    secs: dict[str, list[float]] = {name: [] for name in compiled}
    for turn in range(1 + _ROUNDS.value):
        for name, program in compiled.items():
            started = time.perf_counter()
            jax.block_until_ready(program(qkv, dy))
            if turn:  # the first is slower
                secs[name].append(time.perf_counter() - started)
    return {name: round(1e3 * statistics.median(all_), 3) for name, all_ in secs.items()}


if __name__ == "__main__":
    flags.DEFINE_string("topology", None, "Such as v5e:2x2, h100:1; default: the local device.")
    command.run(main)
