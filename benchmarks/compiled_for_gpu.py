"""Memory, kernels and traffic of a training step on NVIDIA GPUs, without having any.

    JAX_PLATFORMS=cpu python -m benchmarks.compiled_for_gpu --topology h100:1 input.batch_size=64

Needs `pip install '.[plan-gpu]'` and no GPU. The arguments are fields of a config, laid over
ViT-L/16 in bfloat16 at 224 px, batch 64, 1000 classes, AdamW. A plain flax.linen ViT of the same
shape and optimizer (contenders/linen.py), with one device's images, is compiled in the same run,
with the compiler options of our step: what compiles without a GPU needs them. Memory is the
compiler's; bytes are the sum over kernels of operands and results; the time is a roofline. Appends
a row for each to benchmarks/results/compiled_for_gpu.csv.
"""

import dataclasses
import time
from collections.abc import Mapping
from typing import Any

import jax
from absl import flags
from jax.sharding import SingleDeviceSharding

from benchmarks import rows
from benchmarks.compiled_step import GB, GIB, base, compile_step, sent_gb
from benchmarks.contenders import SHAPES, linen
from vit_jax import config as configs
from vit_jax.core import command
from vit_jax.parallel import chips
from vit_jax.tools.plan import topology
from vit_jax.tools.plan.compiled import peak_bytes
from vit_jax.tools.plan.hlo import kernel_secs, kernels

_VARIANT = flags.DEFINE_string("variant", "", "What is tried, for the row.")

FLAGS = flags.FLAGS
BASE = base(batch_size=64)


def main(arguments: list[str]) -> None:
    """Compiles, prints and records."""
    config = configs.resolve(BASE, arguments)
    mesh = topology.mesh(FLAGS.topology, config.mesh)
    device = mesh.devices.flat[0]
    done = compile_step(config, mesh)
    figures = measured(done.compiled, mesh.shape, device.device_kind) | {
        "compile_secs": round(done.compile_secs, 1)
    }
    _record("own", arguments, figures)
    name, images = config.model.name.removeprefix("ViT-"), config.input.batch_size // mesh.size
    if FLAGS.peer and name in SHAPES:
        spec = done.spec
        shape = dataclasses.replace(SHAPES[name], batch=images, depth=spec["depth"])
        _record("linen", arguments, compiled_peer(shape, spec["dtype"], device))


def compiled_peer(shape: Any, dtype: str, device: jax.Device) -> dict[str, object]:
    """The figures of the plain flax.linen step on one device."""
    update, arguments, _ = linen.program(shape, dtype)
    place = SingleDeviceSharding(device)
    put = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place)
    started = time.perf_counter()
    lowered = jax.jit(update, donate_argnums=(0, 1)).lower(*jax.tree.map(put, arguments))
    compiled = lowered.compile(compiler_options=chips.compiler_options(device))
    secs = round(time.perf_counter() - started, 1)
    return measured(compiled, {"data": 1}, device.device_kind) | {"compile_secs": secs}


def measured(compiled: Any, mesh_shape: Mapping[str, int], device_kind: str) -> dict[str, object]:
    """The figures of a step on one GPU."""
    hlo, memory = compiled.as_text(), compiled.memory_analysis()
    found = kernels(hlo)
    secs = kernel_secs(found, device_kind)
    return {
        "kernels": sum(k.runs for k in found),
        "accessed_gb": round(sum(k.runs * k.nbytes for k in found) / GB, 2),
        "product_tflops": round(sum(k.runs * k.flops for k in found) / 1e12, 2),
        "peak_gib": round(peak_bytes(memory) / GIB, 2),
        "roofline_ms": "" if secs is None else round(secs * 1e3, 2),
        **sent_gb(hlo, mesh_shape),
    }


def _record(program: str, arguments: list[str], figures: dict[str, object]) -> None:
    row = {
        "program": program,
        "variant": _VARIANT.value if program == "own" else "",
        "settings": " ".join(arguments),
        **figures,
    }
    device = f"compiled for {FLAGS.topology}"
    rows.record("compiled_for_gpu", "vit_jax", "jax flax", row, device=device)


if __name__ == "__main__":
    flags.DEFINE_string("topology", "h100:1", "Such as h100:8, a100:2x8.")
    flags.DEFINE_bool("peer", True, "Compile the plain flax.linen step too.")
    command.run(main, positional=True)
