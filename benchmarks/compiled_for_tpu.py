"""Memory, traffic and compile time of a training step on TPUs, without having any.

    JAX_PLATFORMS=cpu python -m benchmarks.compiled_for_tpu --topology v5e:16x16 \
        model.name=ViT-L/16 input.batch_size=4096 mesh.data=16 mesh.fsdp=16 model.scan=true

Needs `pip install libtpu` and no TPU. The arguments are fields of a config, laid over ViT-L/16 in
bfloat16 at 224 px with our own kernel of attention (model.attention=fused), batch 4096, 1000
classes, AdamW. Memory is exact; the compiler refuses a program
that does not fit, with the bytes it needs. `mega_cycles` is the sum of the compiler's own
estimates: good for ranking programs on one chip, nothing more. Appends a row to
benchmarks/results/compiled_for_tpu.csv.

With `--peer` the step of another code is compiled for the same topology in the same run, data
parallel and unrolled: big_vision's own, from the checkout that `--big_vision` names, or else a
plain flax.linen ViT of the same shape and optimizer (contenders/linen.py). It has a row of its own,
and another, as `program` big_vision+options or linen+options, with the compiler options of our
step; `of_peer` and `of_tuned_peer` in ours are the ratios of megacycles to them.
"""

import dataclasses
import time
from pathlib import Path
from typing import Any

import jax
from absl import flags
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks import big_vision_step, rows
from benchmarks.compiled_step import GB, GIB, base, compile_step, sent_gb
from benchmarks.contenders import OPTIONS, SHAPES, Shape, linen
from benchmarks.contenders.jax_common import project_options
from vit_jax import config as configs
from vit_jax.core import command
from vit_jax.core.errors import UserError
from vit_jax.tools.plan import topology
from vit_jax.tools.plan.compiled import mega_cycles, peak_bytes

_BIG_VISION = flags.DEFINE_string("big_vision", None, "A checkout of big_vision: the peer.")

FLAGS = flags.FLAGS
BASE = base(batch_size=4096, attention="fused")  # by default XLA's: it has run on no TPU


def main(arguments: list[str]) -> None:
    """Compiles, prints and records."""
    config = configs.resolve(BASE, arguments)
    size = SHAPES.get(config.model.name.removeprefix("ViT-"))
    if size is None and (FLAGS.peer or _BIG_VISION.value):
        raise UserError(
            f"model.name={config.model.name} has no peer: leave --peer and --big_vision out, or "
            f"take one of {', '.join(f'ViT-{name}' for name in SHAPES if '/' in name)}."
        )
    mesh = topology.mesh(FLAGS.topology, config.mesh)
    done = compile_step(config, mesh)
    model, images = config.model, config.input.batch_size
    figures = measured(done.compiled, mesh, forward_flops=done.forward_flops * images // mesh.size)
    row = {
        "model": model.name,
        "settings": " ".join(arguments),
        "batch_size": images,
        "mesh": " ".join(f"{name}={size}" for name, size in mesh.shape.items() if size > 1),
        "scan": bool(model.scan),
        "remat": model.remat or "none",
        "softmax_dtype": model.softmax_dtype or "float32",
        "gradient_dtype": model.gradient_dtype or "",
        "compile_secs": round(done.compile_secs, 1),
        **figures,
        "program": "own",
        "of_peer": "",
        "of_tuned_peer": "",
    }
    if size is not None and (FLAGS.peer or _BIG_VISION.value):
        shape = dataclasses.replace(size, batch=images, depth=done.spec["depth"])
        name = "big_vision" if _BIG_VISION.value else "linen"
        for program, options in programs(name, mesh.devices.flat[0]).items():
            peer = compiled_peer(shape, done.spec["dtype"], mesh, done.forward_flops, options)
            ratio = round(figures["mega_cycles"] / peer["mega_cycles"], 3)
            row["of_tuned_peer" if options else "of_peer"] = ratio
            shared = {key: row[key] for key in ("model", "settings", "batch_size")}
            _record(shared | peer | {"program": program})
    _record(row)


def programs(peer: str, device: jax.Device) -> dict[str, dict[str, str] | None]:
    """Compiler options of a peer's rows, by `program`: by default, and with those of our step.

    The first alone on devices for which our step has no options.
    """
    options = project_options(device)
    return {peer: None} | ({f"{peer}+{OPTIONS}": options} if options else {})


def compiled_peer(
    shape: Shape, dtype: str, mesh: Mesh, forward_flops: int, options: dict[str, str] | None
) -> dict[str, Any]:
    """Columns of the peer's row: its step on all devices, data parallel, with compiler options."""
    checkout = _BIG_VISION.value
    if checkout:
        update, arrays = big_vision_step.program(Path(checkout), shape, dtype)
    else:
        update, arrays, _ = linen.program(shape, dtype)
    whole = NamedSharding(mesh, PartitionSpec())
    divided = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    *state, images, labels = arrays
    put = lambda tree, sharding: jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree
    )
    started = time.perf_counter()
    step = jax.jit(update, donate_argnums=(0, 1), out_shardings=whole, compiler_options=options)
    compiled = step.lower(*put(state, whole), *put([images, labels], divided)).compile()
    return {
        "mesh": f"data={mesh.size}",
        "scan": False,
        "remat": "none",
        "compile_secs": round(time.perf_counter() - started, 1),
        **measured(compiled, mesh, forward_flops=forward_flops * shape.batch // mesh.size),
    }


def _record(row: dict[str, Any]) -> None:
    device = f"compiled for {FLAGS.topology}"
    rows.record("compiled_for_tpu", "vit_jax", "jax libtpu", row, device=device)


def measured(compiled: Any, mesh: Mesh, *, forward_flops: int) -> dict[str, Any]:
    """The compiler's figures for the step on one chip; forward_flops: of the chip's images."""
    memory, cost = compiled.memory_analysis(), compiled.cost_analysis()
    hlo = compiled.as_text()
    # The compiler counts a loop's body once.
    unrolled = " while(" not in hlo
    return {
        "peak_gib": round(peak_bytes(memory) / GIB, 2),
        "temp_gib": round(memory.temp_size_in_bytes / GIB, 2),
        "host_gib": round(memory.host_temp_size_in_bytes / GIB, 2),
        "accessed_gb": round(cost["bytes accessed"] / GB, 1) if unrolled else "",
        "flops_by_model": round(cost["flops"] / (3 * forward_flops), 3) if unrolled else "",
        "mega_cycles": round(mega_cycles(hlo), 2),
        **sent_gb(hlo, mesh.shape),
    }


if __name__ == "__main__":
    flags.DEFINE_string("topology", "v5e:2x2", "Such as v5e:16x16, v4:4x4x4.")
    flags.DEFINE_bool("peer", False, "Compile another code's step too.")
    command.run(main, positional=True)
