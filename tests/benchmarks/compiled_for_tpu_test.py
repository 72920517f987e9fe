"""Models that fit the memory of TPUs, compiled without having any."""

import pytest

from benchmarks.compiled_for_tpu import BASE, measured
from benchmarks.compiled_step import GIB, compile_step
from vit_jax import config as configs
from vit_jax.tools.plan import topology
from vit_jax.tools.plan.compiled import peak_bytes

pytest.importorskip("libtpu", reason="compiling for TPUs without one takes: pip install libtpu")

MEMORY_GIB = {"v3": 16, "v5e": 16, "v5p": 95}  # per jax device: on v3 a core, half a chip
HUGE = "model.name=ViT-H/14"
PLAIN_22B = (
    "model.name=ViT-G/14", "model.depth=48", "model.width=6144", "model.mlp_dim=24576",
    "model.num_heads=48",
)  # fmt: skip


def compiled(name, *overrides):
    config = configs.resolve(BASE, overrides)
    return compile_step(config, topology.mesh(name, config.mesh))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("v3:2x2", (HUGE, "mesh.data=1", "mesh.fsdp=8", "optim.grad_accum_steps=32")),
        ("v5e:4x4", (HUGE, "mesh.data=1", "mesh.fsdp=16", "optim.grad_accum_steps=16")),
        ("v5p:4x4x4", (*PLAIN_22B, "mesh.data=1", "mesh.fsdp=16", "mesh.tensor=4")),
    ],
)
def test_fits(name, overrides):
    step = compiled(name, *overrides, "model.scan=true", "model.remat=full")
    memory = step.compiled.memory_analysis()
    assert peak_bytes(memory) < MEMORY_GIB[name.split(":")[0]] * GIB


@pytest.mark.slow
def test_offloaded_activations_leave_the_chip():
    fields = ("model.depth=4", "input.batch_size=256", "model.scan=true")
    kept = compiled("v5e:2x2", *fields, "model.remat=full").compiled.memory_analysis()
    moved = compiled("v5e:2x2", *fields, "model.remat=offload").compiled.memory_analysis()
    inputs = 4 * 64 * 197 * 1024 * 2  # of 4 blocks, 64 images a chip, bfloat16
    assert moved.host_temp_size_in_bytes >= inputs
    assert kept.temp_size_in_bytes - moved.temp_size_in_bytes > inputs / 2


@pytest.mark.slow
@pytest.mark.parametrize(("remat", "least", "most"), [("none", 0.99, 1.03), ("full", 1.2, 1.36)])
def test_no_unnecessary_product_is_computed(remat, least, most):
    """Compares the unrolled program, for which the compiler's count is complete."""
    fields = ("model.depth=3", "input.batch_size=64", f"model.remat={remat}")
    step = compiled("v5e:2x2", *fields)
    figures = measured(step.compiled, step.layout.mesh, forward_flops=step.forward_flops * 16)
    assert least <= figures["flops_by_model"] <= most
