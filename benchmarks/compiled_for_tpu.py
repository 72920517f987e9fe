"""Memory, traffic and compile time of a training step on TPUs, without having any.

    JAX_PLATFORMS=cpu python -m benchmarks.compiled_for_tpu --topology v5e:16x16 \
        model.name=ViT-L/16 input.batch_size=4096 mesh.data=16 mesh.fsdp=16 model.scan=true

Needs `pip install libtpu` and no TPU. The arguments are fields of a config, laid over ViT-L/16 in
bfloat16 at 224 px, batch 4096, 1000 classes, AdamW. Memory is exact; the compiler refuses a program
that does not fit, with the bytes it needs. `mega_cycles` is the sum of the compiler's own
estimates: good for ranking programs on one chip, nothing more. Appends a row to
benchmarks/results/compiled_for_tpu.csv.
"""

from benchmarks import rows
from benchmarks.compiled_step import GB, GIB, TOPOLOGY, CompiledStep, base, compile_step, sent_gb
from vit_jax import config as configs
from vit_jax.core import command
from vit_jax.plan import topology
from vit_jax.plan.compiled import peak_bytes
from vit_jax.plan.hlo import mega_cycles

DEFAULT = "v5e:2x2"
BASE = base(batch_size=4096)


def main(arguments: list[str]) -> None:
    """Compiles, prints and records."""
    config = configs.resolve(BASE, arguments)
    mesh = topology.mesh(TOPOLOGY.value or DEFAULT, config.mesh)
    done = compile_step(config, mesh)
    model = config.model
    row = {
        "model": model.name,
        "settings": " ".join(arguments),
        "batch_size": config.input.batch_size,
        "mesh": " ".join(f"{name}={size}" for name, size in mesh.shape.items() if size > 1),
        "scan": bool(model.scan),
        "remat": model.remat or "none",
        "softmax_dtype": model.softmax_dtype or "float32",
        "gradient_dtype": model.gradient_dtype or "",
        "compile_secs": round(done.compile_secs, 1),
        **measured(done, images_per_chip=config.input.batch_size / mesh.size),
    }
    device = f"compiled for {TOPOLOGY.value or DEFAULT}"
    rows.record("compiled_for_tpu", "vit_jax", "jax libtpu", row, device=device)


def measured(done: CompiledStep, *, images_per_chip: float) -> dict[str, object]:
    """The compiler's figures for the step on one chip."""
    memory, cost = done.compiled.memory_analysis(), done.compiled.cost_analysis()
    hlo = done.compiled.as_text()
    # The compiler counts a loop's body once.
    unrolled = " while(" not in hlo
    return {
        "peak_gib": round(peak_bytes(memory) / GIB, 2),
        "temp_gib": round(memory.temp_size_in_bytes / GIB, 2),
        "host_gib": round(memory.host_temp_size_in_bytes / GIB, 2),
        "accessed_gb": round(cost["bytes accessed"] / GB, 1) if unrolled else "",
        "flops_by_model": round(cost["flops"] / (3 * done.forward_flops * images_per_chip), 3)
        if unrolled
        else "",
        "mega_cycles": round(mega_cycles(hlo), 2),
        **sent_gb(hlo, done.layout.mesh.shape),
    }


if __name__ == "__main__":
    command.run(main)
