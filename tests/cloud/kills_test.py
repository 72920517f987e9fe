"""Checkpoints in a bucket, whose process is killed after each object that it stores."""

import concurrent.futures
import time

import pytest

from tests.cloud.storage import Fault

# Saves steps 4 and 8, or from the newest on; then restores that.
SAVES = """
import sys

import jax
import jax.numpy as jnp

from vit_jax.store.checkpoints import Checkpoints

sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
layout = {"step": jax.ShapeDtypeStruct((), jnp.int32, sharding=sharding)}
for run in sys.argv[1:]:
    checkpoints = Checkpoints(
        f"gs://bucket/{run}/checkpoints",
        keep_last=3, keep_every_steps=None, best_metric=None, best_mode="max",
    )
    state = checkpoints.restore(layout)
    print(run, "restored", state and int(state["step"]), flush=True)
    for step in (4, 8):
        if state is None or step > int(state["step"]):
            checkpoints.save(step, {"step": jnp.int32(step)}, {}, {})
            checkpoints.wait()
    print(run, "has", int(checkpoints.restore(layout)["step"]), flush=True)
    checkpoints.close()
"""


@pytest.fixture
def kill(storage, start_python, tmp_path):
    """`kill(run, 3)`: kills the process that saves step 8 of that run when 3 objects are stored."""

    def kill_saving(run, objects):
        fault = Fault(f"upload {run}/checkpoints/8/", skip=objects, wait_secs=60, cut=True)
        storage.faults.append(fault)
        output = tmp_path / run
        process = start_python(output, "-c", SAVES, run, **storage.env)
        while fault.met <= objects and process.poll() is None:
            time.sleep(0.01)
        assert "Traceback" not in output.read_text(), output.read_text()
        process.kill()
        process.wait()

    return kill_saving


@pytest.fixture
def check_starts(storage, run_python):
    """`check_starts(runs)`: each starts again, from step 4, and saves step 8."""

    def check(runs):
        result = run_python("-c", SAVES, *runs, **storage.env)
        assert result.returncode == 0, result.stdout + result.stderr
        assert "is damaged" not in result.stderr
        assert result.stdout.splitlines() == [
            line for run in runs for line in (f"{run} restored 4", f"{run} has 8")
        ]

    return check


def test_killed_while_saving_then_the_next_start_goes_on(storage, kill, check_starts):
    kill("saving", 12)
    storage.faults = [Fault("delete saving/checkpoints/8/", wait_secs=0.2, times=10**6)]
    check_starts(["saving"])


@pytest.mark.slow
def test_killed_after_each_object(storage, run_python, kill, check_starts):
    assert run_python("-c", SAVES, "counted", **storage.env).returncode == 0
    uploads = [entry for entry in storage.log if entry.startswith("upload counted/checkpoints/8/")]
    assert uploads[-1].endswith("/8/commit_success.txt")
    objects = range(len(uploads))
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(kill, [f"saving{number}" for number in objects], objects))
        for number in objects:
            for copy in ("quick", "slow"):
                storage.copy(f"saving{number}/", f"{copy}{number}/")
        storage.faults = [Fault("delete slow.*/checkpoints/8/", wait_secs=0.2, times=10**6)]
        runs = [f"{copy}{number}" for number in objects for copy in ("quick", "slow")]
        list(pool.map(check_starts, [runs[begin::4] for begin in range(4)]))
