"""One config on every mesh: the same batches, and the single device's losses to rounding."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from tests.xla_flags import xla_flags

REPOSITORY = Path(__file__).parents[1]

SAME_MATH = 1e-5  # relative; float32 sums in another order
STEPS = 10

# Trains one config after the other and prints losses, and the checksums of batches; with everything
# on that is random or carried along, so that what depended on the mesh would show.
TRAIN = """
import json, sys
from pathlib import Path
sys.path.insert(0, "tests")
folder, runs, process, processes, port = sys.argv[1:]
import jax
if int(processes) > 1:
    jax.distributed.initialize(f"localhost:{port}", int(processes), int(process))
from conftest import TINY_RUN
from vit_jax import config as configs
from vit_jax.run import build
from vit_jax.store.checksums import checksums
from vit_jax.train import train

for name, overrides in json.loads(runs).items():
    config = configs.resolve(TINY_RUN, overrides)
    source, mesh = build.source(config.input), build.mesh(config.mesh)
    layout = build.batch_layout(config, source, mesh)
    with build.train_feed(config, source, layout, start_step=7) as feed:
        batches = [checksums(next(feed)) for _ in range(2)]
    workdir = Path(folder) / name
    train(config, workdir)
    if jax.process_index() == 0:
        rows = [json.loads(line) for line in (workdir / "metrics.jsonl").open()]
        losses = [r["train/loss"] for r in rows if "train/loss" in r]
        print(json.dumps([name, losses, batches]))
"""
RUN = (
    f"total.steps={STEPS}", "input.batch_size=32", "model.num_heads=4", "model.dropout=0.1",
    "model.stochastic_depth=0.1", "loss.mixup=0.2", "loss.cutmix=1.0", "optim.ema_decay=0.9",
    "optim.weight_decay=0.1", "optim.lr=3e-3",
)  # fmt: skip
ALL_KINDS = {
    "data x fsdp x tensor, ZeRO-1": (
        "mesh.data=2", "mesh.fsdp=2", "mesh.tensor=2", "mesh.shard_optimizer=true",
    ),
}  # fmt: skip
MESHES = {
    "replica x data x fsdp": ("mesh.replica=2", "mesh.data=2", "mesh.fsdp=2"),
    "ZeRO-1": ("mesh.data=8", "mesh.shard_optimizer=true"),
    "heads that do not divide": ("mesh.data=1", "mesh.tensor=8"),
    "fsdp, scan and remat": ("mesh.data=1", "mesh.fsdp=8", "model.scan=true", "model.remat=full"),
}
# Each axis goes through several processes somewhere. With 4 processes of 2 devices the neighbours
# along `tensor` are in two processes, which read the same images.
ACROSS_PROCESSES = {
    2: {
        "ZeRO-1 and fsdp": ("mesh.data=4", "mesh.fsdp=2", "mesh.shard_optimizer=true"),
    },
    4: {
        "fsdp x tensor 4": ("mesh.data=1", "mesh.fsdp=2", "mesh.tensor=4"),
    },
}


class Outcome(NamedTuple):
    """Of a run: its losses, and the checksums of some of its batches."""

    losses: np.ndarray
    batches: list


def outcomes(folder, runs, *, processes=1, devices=8):
    """By name of the run; `runs`: overrides by name. `devices` in all, shared by the processes."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": xla_flags(devices // processes),
        "PYTHONPATH": ".",
    }
    common = [sys.executable, "-c", TRAIN, str(folder), json.dumps(runs)]
    started = [
        subprocess.Popen(
            [*common, str(i), str(processes), str(port)],
            cwd=REPOSITORY, env=environment, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for i in range(processes)
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=1200) for process in started]
    finally:
        for process in started:
            process.kill()
    for process, (_, errors) in zip(started, said, strict=True):
        assert process.returncode == 0, errors[-3000:]
    lines = [json.loads(line) for line in said[0][0].splitlines() if line.startswith('["')]
    return {name: Outcome(np.array(losses), batches) for name, losses, batches in lines}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The outcome of a single device."""
    folder = tmp_path_factory.mktemp("alone")
    return outcomes(folder, {"alone": (*RUN, "mesh.data=1")}, devices=1)["alone"]


def check(folder, meshes, alone, *, processes=1):
    runs = {name: (*RUN, *mesh) for name, mesh in meshes.items()}
    found = outcomes(folder, runs, processes=processes)
    assert found.keys() == meshes.keys()
    assert len(alone.losses) == STEPS
    for name, outcome in found.items():
        assert outcome.batches == alone.batches, name
        np.testing.assert_allclose(outcome.losses, alone.losses, rtol=SAME_MATH, err_msg=name)


def test_a_mesh_of_all_kinds_gives_the_losses_of_one_device(tmp_path, alone):
    check(tmp_path, ALL_KINDS, alone)


@pytest.mark.slow
def test_every_mesh_gives_the_losses_of_one_device(tmp_path, alone):
    check(tmp_path, MESHES, alone)


@pytest.mark.slow
@pytest.mark.parametrize("processes", ACROSS_PROCESSES)
def test_several_processes_give_the_losses_of_one_device(tmp_path, alone, processes):
    check(tmp_path, ACROSS_PROCESSES[processes], alone, processes=processes)


@pytest.mark.slow
def test_accumulation_composes_with_the_mesh(tmp_path):
    """Against one device that accumulates as well: its parts draw the same dropout."""
    runs = {
        "alone": (*RUN, "mesh.data=1", "optim.grad_accum_steps=2"),
        "mesh": (*RUN, "mesh.data=2", "mesh.fsdp=2", "mesh.tensor=2", "optim.grad_accum_steps=2"),
    }
    found = outcomes(tmp_path, runs)
    np.testing.assert_allclose(found["mesh"].losses, found["alone"].losses, rtol=SAME_MATH)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adafactor", "lamb", "lion", "muon", "sgd"])
def test_every_optimizer_composes_with_the_mesh(tmp_path, optimizer):
    """Lion is left out of the comparison of losses: the sign of a rounding error is anything."""
    more = (f"optim.name={optimizer}", "optim.lr=1e-3", "total.steps=5")
    sharded = ("mesh.data=2", "mesh.fsdp=2", "mesh.tensor=2", "mesh.shard_optimizer=true")
    runs = {"alone": (*RUN, "mesh.data=1", *more), "mesh": (*RUN, *sharded, *more)}
    found = outcomes(tmp_path, runs)
    assert len(found["mesh"].losses) == 5
    if optimizer != "lion":
        np.testing.assert_allclose(found["mesh"].losses, found["alone"].losses, rtol=SAME_MATH)
