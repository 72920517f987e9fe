"""One config on every mesh: the same batches, and the single device's losses to rounding."""

import json

import numpy as np
import pytest

SAME_MATH = 1e-5  # relative; float32 sums in another order
STEPS = 20

# Trains on each mesh of 8 devices in turn and prints the losses; with everything on that is random
# or carried along, so that what depended on the mesh would show.
TRAIN = """
import json, sys, tempfile
from pathlib import Path
sys.path.insert(0, "tests")
from conftest import TINY_RUN
from vit_jax import config as configs
from vit_jax.train import train

for name, overrides in json.loads(sys.argv[1]).items():
    workdir = Path(tempfile.mkdtemp())
    train(configs.resolve(TINY_RUN, overrides), workdir)
    rows = [json.loads(line) for line in (workdir / "metrics.jsonl").open()]
    print(json.dumps([name, [r["train/loss"] for r in rows if "train/loss" in r]]))
"""
RUN = (
    f"total.steps={STEPS}", "input.batch_size=32", "model.heads=4", "model.dropout=0.1",
    "model.stochastic_depth=0.1", "loss.mixup=0.2", "loss.cutmix=1.0", "optim.ema_decay=0.9",
    "optim.weight_decay=0.1", "optim.lr=3e-3",
)  # fmt: skip
MESHES = {
    "data": ("mesh.data=8",),
    "fsdp": ("mesh.data=1", "mesh.fsdp=8"),
    "tensor": ("mesh.data=1", "mesh.tensor=4"),
    "data x fsdp x tensor": ("mesh.data=2", "mesh.fsdp=2", "mesh.tensor=2"),
    "replica x data x fsdp": ("mesh.replica=2", "mesh.data=2", "mesh.fsdp=2"),
    "ZeRO-1": ("mesh.data=8", "mesh.shard_optimizer=true"),
    "ZeRO-1 and fsdp": ("mesh.data=4", "mesh.fsdp=2", "mesh.shard_optimizer=true"),
    "heads that do not divide": ("mesh.data=1", "mesh.tensor=8"),
    "scan and remat": ("mesh.data=2", "mesh.fsdp=4", "model.scan=true", "model.remat=full"),
}
QUICK = ("data x fsdp x tensor", "ZeRO-1 and fsdp")


def losses(run_python, runs):
    """Losses by name of the run; `runs`: overrides by name."""
    done = run_python("-c", TRAIN, json.dumps(runs), devices=8, timeout_secs=1200)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    return {name: np.array(values) for name, values in map(json.loads, lines)}


def check(run_python, names):
    runs = {"alone": ("mesh.data=1",)} | {name: MESHES[name] for name in names}
    found = losses(run_python, {name: (*RUN, *overrides) for name, overrides in runs.items()})
    for name, values in found.items():
        assert len(values) == STEPS
        np.testing.assert_allclose(values, found["alone"], rtol=SAME_MATH, err_msg=name)


def test_some_meshes_give_the_losses_of_one_device(run_python):
    check(run_python, QUICK)


@pytest.mark.slow
def test_every_mesh_gives_the_losses_of_one_device(run_python):
    check(run_python, MESHES)


@pytest.mark.slow
def test_accumulation_composes_with_the_mesh(run_python):
    """Against one device that accumulates as well: its parts draw the same dropout."""
    runs = {
        "alone": (*RUN, "mesh.data=1", "optim.accumulate=2"),
        "mesh": (*RUN, "mesh.data=2", "mesh.fsdp=2", "mesh.tensor=2", "optim.accumulate=2"),
    }
    found = losses(run_python, runs)
    np.testing.assert_allclose(found["mesh"], found["alone"], rtol=SAME_MATH)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adafactor", "lamb", "lion", "muon", "sgd"])
def test_every_optimizer_composes_with_the_mesh(run_python, optimizer):
    """Lion is left out of the comparison of losses: the sign of a rounding error is anything."""
    more = (f"optim.name={optimizer}", "optim.lr=1e-3", "total.steps=5")
    sharded = ("mesh.data=2", "mesh.fsdp=2", "mesh.tensor=2", "mesh.shard_optimizer=true")
    runs = {"alone": (*RUN, "mesh.data=1", *more), "mesh": (*RUN, *sharded, *more)}
    found = losses(run_python, runs)
    assert len(found["mesh"]) == 5
    if optimizer != "lion":
        np.testing.assert_allclose(found["mesh"], found["alone"], rtol=SAME_MATH)
