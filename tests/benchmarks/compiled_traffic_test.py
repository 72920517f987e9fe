"""Traffic of the step compiled for TPUs, against the formula."""

import collections

import pytest

from benchmarks.compiled_step import compile_step
from benchmarks.expected_traffic import SMALLEST_BYTES, activation_traffic, parameter_traffic
from vit_jax import config as configs
from vit_jax.tools.plan import topology
from vit_jax.tools.plan.hlo import collectives

pytest.importorskip("libtpu", reason="compiling for TPUs without one takes: pip install libtpu")

DEPTH, WIDTH, TOKENS = 3, 1024, 197  # three layers of ViT-L/16
IMAGES_PER_DEVICE = 4
RUN = {
    "model": {"name": "ViT-L/16", "depth": DEPTH, "dtype": "bfloat16"},
    "input": {"preprocess": "decode|resize(224)", "num_classes": 1000},
    "optim": {"weight_decay": 0.1},
    "total": {"steps": 100},
}
TOLERANCE = 0.05  # relative: scattered arrays are padded to tiles, such as 1,024 rows to 1,056


def compiled(name, *overrides):
    config = configs.resolve(RUN, overrides)
    mesh = topology.mesh(name, config.mesh)
    batch = IMAGES_PER_DEVICE * mesh.size // mesh.shape["tensor"]
    config = configs.resolve(RUN, [*overrides, f"input.batch_size={batch}"])
    return config, compile_step(config, mesh)


def sent(step):
    """Bytes of large arrays by (kind, axes), and the dtypes of reductions."""
    counts, reduced = collections.Counter(), set()
    for one in collectives(step.compiled.as_text(), step.layout.mesh.shape):
        if one.array_bytes >= SMALLEST_BYTES:
            is_reduction = one.kind in ("all-reduce", "reduce-scatter")
            counts["reduce" if is_reduction else one.kind, one.axes] += one.total_bytes
            reduced |= {one.dtype} if is_reduction else set()
    return counts, reduced


def expected(config, step):
    """Bytes by (kind, axes), from the formula."""
    layout, remat = step.layout, config.model.remat or "none"
    in_blocks, in_head = {None: (2, 4), "bfloat16": (2, 2), "float32": (4, 4)}[
        config.model.gradient_dtype
    ]
    transfers = parameter_traffic(
        layout.computed,
        layout.update_shardings,
        compute_bytes=lambda name: 2,  # the head's as well: TPUs multiply float32 in bfloat16
        gradient_bytes=lambda name: in_head if name.startswith("head/") else in_blocks,
        gathers=2 if config.model.scan or remat == "full" else 1,
        grad_accum_steps=config.optim.grad_accum_steps,
    ) + activation_traffic(
        layout.mesh.shape,
        stream_bytes=IMAGES_PER_DEVICE * TOKENS * WIDTH * 2,
        depth=DEPTH,
        sums=5 if remat == "full" else 4,
    )
    counts = collections.Counter()
    for transfer in transfers:
        counts[transfer.kind, transfer.axes] += transfer.total_bytes
    return counts


def check(name, *overrides):
    config, step = compiled(name, *overrides)
    (counts, reduced), wanted = sent(step), expected(config, step)
    assert counts.keys() == wanted.keys(), (counts, wanted)
    for key, number in wanted.items():
        assert counts[key] == pytest.approx(number, rel=TOLERANCE), (key, counts, wanted)
    return reduced


# With more devices along one axis, XLA instead hides rings of permutations behind the products.
MESHES = {
    "data": ("v5e:2x2", "mesh.data=4"),
    "zero-1": ("v5e:2x2", "mesh.data=4", "mesh.shard_optimizer=true"),
    "fsdp": ("v5e:2x2", "mesh.data=1", "mesh.fsdp=4"),
    "data x fsdp": ("v5e:4x4", "mesh.data=4", "mesh.fsdp=4"),
    "tensor": ("v5e:4x4", "mesh.data=1", "mesh.tensor=16"),
    "data x fsdp x tensor": ("v5e:4x4", "mesh.data=2", "mesh.fsdp=4", "mesh.tensor=2"),
}


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
def test_a_scan_sends_what_the_formula_says(mesh):
    check(*MESHES[mesh], "model.scan=true")


@pytest.mark.slow
def test_the_unrolled_program_sends_it_too():
    check(*MESHES["data"])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_gradients_are_summed_in_their_dtype(dtype):
    dtypes = check("v5e:2x2", "model.scan=true", f"model.gradient_dtype={dtype}")
    assert dtypes == {{"bfloat16": "bf16", "float32": "f32"}[dtype]}
