"""One config on every mesh gives the same batches and, to rounding, one device's losses."""

import json
import shutil
from typing import NamedTuple

import jax
import numpy as np
import pytest
from flax import nnx

from tests.conftest import TINY_RUN
from tests.processes import free_port
from vit_jax import config as configs
from vit_jax import weights
from vit_jax.config import MeshConfig
from vit_jax.learning.optim import optimizers
from vit_jax.run.parts import examples, inputs
from vit_jax.store.checkpoint_dir import checksums
from vit_jax.train import train

SAME_MATH = 1e-5  # relative; float32 sums in another order
STEPS = 10
GLOO_WAITED = "Gloo context initialization failed"  # in vain, for another process to compile

# Trains one config after another and prints the outcomes.
TRAIN = """
import json, sys
from pathlib import Path
folder, runs, process, processes, port = sys.argv[1:]
import jax
if int(processes) > 1:
    jax.distributed.initialize(f"localhost:{port}", int(processes), int(process))
from tests.meshes_test import outcome

for name, overrides in json.loads(runs).items():
    print(json.dumps([name, *outcome(Path(folder) / name, overrides)]))
"""
RUN = (
    f"total.steps={STEPS}", "input.batch_size=32", "model.num_heads=4", "model.dropout=0.1",
    "model.stochastic_depth=0.1", "loss.mixup=0.2", "loss.cutmix=1.0", "optim.ema_decay=0.9",
    "optim.weight_decay=0.1", "optim.lr=3e-3", "loss.class_weights=1,2,3,4",
)  # fmt: skip
ALL_KINDS = {
    "data x fsdp x tensor, ZeRO-1": (
        "mesh.data=2", "mesh.fsdp=2", "mesh.tensor=2", "mesh.shard_optimizer=true",
        "input.cache=device",
    ),
}  # fmt: skip
MESHES = {
    "replica x data x fsdp": ("mesh.replica=2", "mesh.data=2", "mesh.fsdp=2"),
    "ZeRO-1": ("mesh.data=8", "mesh.shard_optimizer=true"),
    "heads that do not divide": ("mesh.data=1", "mesh.tensor=8"),
    "fsdp, scan and remat": ("mesh.data=1", "mesh.fsdp=8", "model.scan=true", "model.remat=full"),
}
# Each axis spans several processes somewhere. With 4 processes of 2 devices the neighbours along
# `tensor` are in two processes, which read the same images.
ACROSS_PROCESSES = {
    2: {
        "ZeRO-1 and fsdp": (
            "mesh.data=4",
            "mesh.fsdp=2",
            "mesh.shard_optimizer=true",
            "input.cache=device",
        )
    },
    4: {"fsdp x tensor 4": ("mesh.data=1", "mesh.fsdp=2", "mesh.tensor=4")},
}


class Outcome(NamedTuple):
    """A run's losses, and the checksums of some of its batches."""

    losses: list
    batches: list


def outcome(workdir, overrides):
    """Trains with everything on that is random or carried along and could depend on the mesh."""
    config = configs.resolve(TINY_RUN, overrides)
    source, mesh = examples.source(config.input), inputs.mesh(config.mesh)
    layout = inputs.batch_layout(config.input, source, mesh)
    with inputs.train_feed(config.input, source, layout, seed=config.seed, start_step=7) as feed:
        batches = [checksums(next(feed)) for _ in range(2)]
    train(config, workdir)
    rows = [json.loads(line) for line in (workdir / "metrics.jsonl").open()]
    return Outcome([r["train/loss"] for r in rows if "train/loss" in r], batches)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The outcome on a single device."""
    return outcome(tmp_path_factory.mktemp("alone"), (*RUN, "mesh.data=1"))


@pytest.fixture
def outcomes(tmp_path, start_python):
    """`outcomes(runs)`: outcomes by name, from overrides by name.

    `devices` counts those of all processes.
    """

    def start(runs, processes, devices):
        port, common = free_port(), ["-c", TRAIN, str(tmp_path), json.dumps(runs)]
        outputs = [tmp_path / f"output {i} of {processes}" for i in range(processes)]
        started = [
            start_python(
                output, *common, str(i), str(processes), str(port), devices=devices // processes
            )
            for i, output in enumerate(outputs)
        ]
        statuses = [process.wait(1200) for process in started]
        return statuses, [output.read_text() for output in outputs]

    def outcomes(runs, *, processes=1, devices=8):
        statuses, outputs = start(runs, processes, devices)
        if any(GLOO_WAITED in output for output in outputs):  # 30 s; a busy machine may need more
            for name in runs:
                shutil.rmtree(tmp_path / name, ignore_errors=True)
            statuses, outputs = start(runs, processes, devices)
        assert not any(statuses), [output[-3000:] for output in outputs]
        lines = [line for line in outputs[0].splitlines() if line.startswith('["')]
        return {name: Outcome(*values) for name, *values in map(json.loads, lines)}

    return outcomes


@pytest.fixture
def check(outcomes, alone):
    """`check(meshes)`: asserts that they give a single device's outcome."""

    def check(meshes, *, processes=1):
        runs = {name: (*RUN, *mesh) for name, mesh in meshes.items()}
        on_meshes = outcomes(runs, processes=processes)
        assert on_meshes.keys() == meshes.keys()
        assert len(alone.losses) == STEPS
        for name, outcome in on_meshes.items():
            assert outcome.batches == alone.batches, name
            np.testing.assert_allclose(outcome.losses, alone.losses, rtol=SAME_MATH, err_msg=name)

    return check


@pytest.mark.slow
def test_a_mesh_of_all_kinds_gives_the_losses_of_one_device(check):
    check(ALL_KINDS)


@pytest.mark.slow
def test_every_mesh_gives_the_losses_of_one_device(check):
    check(MESHES)


@pytest.mark.slow
@pytest.mark.parametrize("processes", ACROSS_PROCESSES)
def test_several_processes_give_the_losses_of_one_device(check, processes):
    check(ACROSS_PROCESSES[processes], processes=processes)


@pytest.mark.slow
def test_adapters_on_a_mesh_learn_what_they_do_on_one_device(outcomes, tmp_path):
    lora = (*RUN, "lora.kernels=blocks/.*/kernel,head/kernel", "lora.rank=4")
    meshes = {
        "alone": ("mesh.data=1",),
        **ALL_KINDS,
        "fsdp, scan": ("mesh.fsdp=2", "model.scan=true"),
    }
    learnt = outcomes({name: (*lora, *mesh) for name, mesh in meshes.items()})
    for name, outcome in learnt.items():
        expected = learnt["alone"].losses
        np.testing.assert_allclose(outcome.losses, expected, rtol=SAME_MATH, err_msg=name)
    # Merged on a mesh as on one device, whatever mesh wrote them.
    for name in meshes:
        _, sharded = nnx.split(weights.load(tmp_path / name, mesh=inputs.mesh(MeshConfig())))
        _, whole = nnx.split(weights.load(tmp_path / name))
        jax.tree.map(np.testing.assert_array_equal, sharded, whole)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["novograd", "contrib.schedule_free_adamw"])
def test_an_optimizer_of_optax_on_a_mesh_learns_what_it_does_on_one_device(outcomes, name):
    """One matrix by matrix, and one with weights of its own to evaluate."""
    own = ("optim.ema_decay=none", "optim.weight_decay_on=all", f"optim.name=optax:{name}")
    meshes = {"alone": ("mesh.data=1",), **ALL_KINDS}
    learnt = outcomes({mesh: (*RUN, *own, *fields) for mesh, fields in meshes.items()})
    for mesh, outcome in learnt.items():
        expected = learnt["alone"].losses
        np.testing.assert_allclose(outcome.losses, expected, rtol=SAME_MATH, err_msg=mesh)


@pytest.mark.slow
@pytest.mark.parametrize("adapters", [(), ("lora.kernels=blocks/.*/kernel", "lora.rank=4")])
def test_learned_rotations_and_inner_norms_on_a_mesh(outcomes, adapters):
    fields = (
        "model.position_embedding=rotary_mixed", "model.absolute_positions=true",
        "model.attention_norm=true", "model.mlp_norm=true", "model.mlp=swiglu", "model.pool=map",
        "model.pool_heads=2", "model.scan=true", "model.remat=full", *adapters,
    )  # fmt: skip
    meshes = {"alone": ("mesh.data=1",), **ALL_KINDS}
    learnt = outcomes({mesh: (*RUN, *fields, *its) for mesh, its in meshes.items()})
    for mesh, outcome in learnt.items():
        expected = learnt["alone"].losses
        np.testing.assert_allclose(outcome.losses, expected, rtol=SAME_MATH, err_msg=mesh)


# Fields of published families, each with most of what only it has, that no model's name implies.
FAMILIES = {
    "SigLIP": ("pool=map", "projection=8", "unit_features=true"),
    "CLIP": ("pre_norm=true", "patch_bias=false", "gelu=quick"),
    "EVA-02": (
        "position_embedding=rotary_axial", "absolute_positions=true", "mlp_norm=true",
        "mlp=swiglu", "pool=avg", "class_token=true", "final_norm=features",
    ),
    "BEiT": ("position_embedding=relative_2d", "layer_scale=0.1", "qkv_bias=query_value"),
    "AIMv2": ("norm=rms", "mlp=swiglu", "dense_bias=false", "qkv_bias=none", "patch_norm=true"),
    "ResFormer": ("value_residual=0.5", "depth=2"),
}  # fmt: skip

RESUME = """
import json, shutil, sys
from pathlib import Path
import jax
jax.config.update("jax_disable_most_optimizations", True)
from tests.conftest import TINY_RUN
from vit_jax import config as configs
from vit_jax import weights
from vit_jax.train import train

folder, common, families = sys.argv[1:]
for name, fields in json.loads(families).items():
    workdir = Path(folder) / name
    config = configs.resolve(TINY_RUN, [*json.loads(common), *(f"model.{x}" for x in fields)])
    outcomes = []
    for _ in range(2):
        train(config, workdir)
        outcomes.append(weights.checkpoint_info(workdir / "checkpoints" / "2").fingerprint())
        shutil.rmtree(workdir / "checkpoints" / "2")
    assert (workdir / "checkpoints" / "1").exists()
    print(json.dumps([name, *outcomes]))
"""


@pytest.mark.slow
def test_families_take_steps_on_8_devices_and_resume_to_the_bit(run_python, tmp_path):
    common = (
        *RUN, *ALL_KINDS["data x fsdp x tensor, ZeRO-1"], "total.steps=2",
        "checkpoint.every_steps=1", "model.depth=1",
    )  # fmt: skip
    arguments = map(json.dumps, (common, FAMILIES))
    done = run_python("-c", RESUME, str(tmp_path), *arguments, devices=8)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('["')]
    assert [name for name, *_ in lines] == list(FAMILIES)
    for name, straight, resumed in lines:
        assert straight == resumed, name


# Steps without the run around them. 15 examples: with 16 a class may have exactly its share, 4, and
# then the gradient of a fresh head's bias is pure rounding error, which Adam scales to a step.
UPDATES = """
import json, sys
import numpy as np
from tests.learning.step_test import Trainer

weight = np.ones(16, np.float32)
weight[0] = 0
for name, fields in json.loads(sys.argv[1]).items():
    curves = []
    for data, fsdp, tensor in ((1, 1, 1), (2, 2, 2)):
        mesh = {"data": data, "fsdp": fsdp, "tensor": tensor}
        trainer = Trainer(
            mixup=0.2, dropout=0.1, mesh=mesh, shard_optimizer=fsdp > 1, **fields
        )
        assert trainer.layout.mesh.size == data * fsdp * tensor
        batches = (trainer.batch(i, weight=weight) for i in range(3))
        curves.append([float(trainer.step(batch)["train/loss"]) for batch in batches])
    print(json.dumps([name, *curves]))
"""


@pytest.mark.slow
def test_every_optimizer_and_accumulation_compose_with_the_mesh(run_python):
    """Compares with one device that accumulates too: its microbatches draw the same dropout."""
    # Of those whose update is elementwise two, which a mesh divides alike.
    tried = {n for n, o in optimizers.OPTIMIZERS.items() if not o.elementwise} | {"adam", "sgd"}
    runs = {name: {"optimizer": name} for name in sorted(tried)}
    runs["sgd"]["grad_accum_steps"] = 2  # whose update depends on the gradient's size
    done = run_python("-c", UPDATES, json.dumps(runs), devices=8)
    assert done.returncode == 0, done.stderr[-3000:]
    curves = [json.loads(line) for line in done.stdout.splitlines()]
    assert [name for name, *_ in curves] == list(runs)
    for name, alone, sharded in curves:
        assert len(alone) == 3
        np.testing.assert_allclose(sharded, alone, rtol=SAME_MATH, err_msg=name)
