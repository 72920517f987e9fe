"""Full and read-only disks, and processes killed while saving."""

import errno
import os
import random
import subprocess
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.messages import refused
from tests.processes import wait_for
from vit_jax.store import checkpoint_dir
from vit_jax.store.checkpoints import Checkpoints

RULES = {"keep_last": 1, "keep_every_steps": None, "best_metric": None, "best_mode": "max"}
MEGABYTES = 4


def state_of(step, megabytes=MEGABYTES):
    noise = np.random.default_rng(step).random((megabytes, 2**18), np.float32)  # not compressible
    return {"params": {"x": jnp.asarray(noise)}, "step": jnp.int32(step)}


LAYOUT = jax.eval_shape(lambda: state_of(0))


@pytest.fixture
def small_disk(tmp_path):
    """A file system of ten megabytes, where mounting is permitted."""
    disk = tmp_path / "disk"
    disk.mkdir()
    size = f"size={10 * 2**20}"
    mount = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(disk)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no permission to mount a small disk")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_full_disk_leaves_the_previous_checkpoint_valid(small_disk, capfd):
    checkpoints = Checkpoints(small_disk / "checkpoints", **RULES)
    checkpoints.save(1, state_of(1), {}, None)
    checkpoints.wait()
    filler = small_disk / "somebody else's"
    filler.write_bytes(bytes(4 * 2**20))
    capfd.readouterr()
    checkpoints.save(2, state_of(2), {}, None)
    with refused("checkpoint.keep_last"):
        checkpoints.wait()
    assert capfd.readouterr().err == ""  # the message is all that a user sees
    assert [f.name for f in (small_disk / "checkpoints").iterdir()] == ["1"]
    assert int(checkpoints.restore(LAYOUT)["step"]) == 1
    filler.unlink()
    checkpoints.save(3, state_of(3), {}, None)
    checkpoints.close()
    assert [f.name for f in (small_disk / "checkpoints").iterdir()] == ["3"]


FILLS_UP = """
import itertools, os, sys
import jax, jax.numpy as jnp
from vit_jax.core.errors import UserError
from vit_jax.store.checkpoints import Checkpoints

disk = sys.argv[1]
filled = disk + "/somebody else's"
arrays = {str(i): jax.random.normal(jax.random.key(i), (64, 64)) for i in range(30)}
state = {"params": arrays, "step": jnp.int32(0)}

def fill(left):
    try:
        with open(filled, "ab", buffering=0) as filler:
            for _ in itertools.count():
                filler.write(bytes(4096))
    except OSError:
        os.truncate(filled, os.path.getsize(filled) - left)

for left in sys.argv[2:]:
    c = Checkpoints(f"{disk}/{left}", keep_last=1, keep_every_steps=None, best_metric=None,
                    best_mode="max")
    c.save(1, state, {}, None)
    c.wait()
    c.save(2, state, {}, None)
    try:
        try:
            for step in itertools.count(3):
                fill(int(left))  # anew, since an older step was deleted
                c.save(step, state, {}, None)
                c.wait()
        finally:
            c.close()
    except UserError as error:
        print(error)
    os.remove(filled)
"""


def test_a_disk_that_fills_up_between_saves_gives_one_message(small_disk, run_python):
    """Several files of a save fail, each in its own thread."""
    left_bytes = ("0", "8192", "65536")
    # Fresh, since a fork of a process with threads may hang where many of them fail.
    done = run_python("-c", FILLS_UP, str(small_disk), *left_bytes, fresh=True)
    assert (done.returncode, done.stderr) == (0, "")
    for left, message in zip(left_bytes, done.stdout.splitlines(), strict=True):
        (step,) = [f.name for f in (small_disk / left).iterdir()]
        assert f"Step {step} " in message and os.strerror(errno.ENOSPC) in message
        layout = {f"params/{i}": jax.ShapeDtypeStruct((64, 64), "float32") for i in range(30)}
        checkpoint_dir.read_some(small_disk / left / step, layout)


LIMITED = """
import resource, signal, sys
import jax, jax.numpy as jnp
from vit_jax.core.errors import UserError
from vit_jax.store.checkpoints import Checkpoints

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
state = {"params": {"x": jax.random.normal(jax.random.key(0), (4, 2**18))}}
layout = jax.eval_shape(lambda: state)
c = Checkpoints(sys.argv[1], keep_last=1, keep_every_steps=None, best_metric=None, best_mode="max")
c.save(1, state, {}, None)
c.wait()

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

for step, late in ((2, c.wait), (3, lambda: c.save(9, state, {}, None)), (4, c.close)):
    limit(2**20)
    c.save(step, state, {}, None)
    try:
        late()
    except UserError as error:
        assert "File too large. Step 1 is still valid." in str(error), error
    else:
        raise AssertionError(f"the failed save of step {step} went unnoticed")
    limit(resource.RLIM_INFINITY)
    assert c.latest_step() == 1
    assert c.restore(layout) is not None
"""


def test_a_failed_save_surfaces_in_wait_save_and_close(tmp_path, run_python):
    """A limit on file size stands in for a full disk where nothing can be mounted."""
    done = run_python("-c", LIMITED, str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


def test_a_read_only_disk_is_noticed_before_training(small_disk):
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with refused("--workdir"):
        Checkpoints(small_disk / "run" / "checkpoints", **RULES)


def test_a_disk_that_becomes_read_only_is_noticed_when_saving(small_disk):
    checkpoints = Checkpoints(small_disk / "checkpoints", **RULES)
    checkpoints.save(1, state_of(1), {}, None)
    checkpoints.wait()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with refused("Read-only file system"):
        checkpoints.save(2, state_of(2), {}, None)
        checkpoints.wait()
    assert int(checkpoints.restore(LAYOUT)["step"]) == 1


BECOMES_READ_ONLY = """
import subprocess, sys
import jax.numpy as jnp
from vit_jax.core.errors import UserError
from vit_jax.store.checkpoints import Checkpoints

c = Checkpoints(sys.argv[1] + "/checkpoints", keep_last=1, keep_every_steps=None, best_metric=None,
                best_mode="max")
subprocess.run(["mount", "-o", "remount,ro", sys.argv[1]], check=True)
try:
    c.save(1, {"params": {"x": jnp.ones(3)}}, {}, None)
    c.close()
except UserError:
    sys.exit(1)
"""


def test_a_process_ends_soon_after_its_save_failed(small_disk, run_python):
    """Orbax's threads could wait minutes for a folder that cannot be made."""
    done = run_python("-c", BECOMES_READ_ONLY, str(small_disk), timeout_secs=60)
    assert done.returncode == 1


def test_a_folder_that_appears_while_saving_gives_one_message(tmp_path, monkeypatch):
    """In a bucket, the last write of a killed process may arrive after its folder was removed."""
    checkpoints = Checkpoints(tmp_path / "checkpoints", **RULES)
    checkpoints.save(1, state_of(1), {}, None)
    checkpoints.wait()

    def late(*_, **__):
        raise FileExistsError("gs://bucket/checkpoints/2 already exists.")  # as etils raises it

    monkeypatch.setattr(checkpoints._manager, "save", late)
    with refused("Step 1 is still valid"):
        checkpoints.save(2, state_of(2), {}, None)


SAVE_UNTIL_KILLED = """
import sys
import jax.numpy as jnp, numpy as np
from vit_jax.store.checkpoints import Checkpoints

c = Checkpoints(sys.argv[1], keep_last=2, keep_every_steps=None, best_metric=None, best_mode="max")
rows = int(sys.argv[2])
for step in range(1, 1000):
    noise = np.random.default_rng(step).random((rows, 2**18), np.float32)
    state = {"params": {"x": jnp.asarray(noise)}, "step": jnp.int32(step)}
    c.save(step, state, {}, None)
    print(step, flush=True)
"""


def assert_only_whole_checkpoints_after_a_kill(start_python, directory, megabytes, delay_secs):
    """Kills a process that saves continuously."""
    output = directory.with_name("output")
    process = start_python(output, "-c", SAVE_UNTIL_KILLED, str(directory), str(megabytes))
    wait_for(lambda: "3\n" in output.read_text(), what=output.read_text)
    time.sleep(delay_secs)
    process.kill()
    process.wait()
    last = [int(line) for line in output.read_text().splitlines()][-1:]
    checkpoints = Checkpoints(directory, **RULES)
    layout = jax.eval_shape(lambda: state_of(0, megabytes))
    state = checkpoints.restore(layout)
    step = int(state["step"])
    assert step >= last[0] - 2  # at most the one being written is lost, and the one just begun
    assert (state["params"]["x"] == state_of(step, megabytes)["params"]["x"]).all()
    assert not (directory.parent / "damaged").exists()  # no half-written one has a step's name
    checkpoints.save(step + 1, state_of(step + 1, megabytes), {}, None)
    checkpoints.close()
    assert [f.name for f in directory.iterdir()] == [str(step + 1)]  # no remains


def test_a_process_killed_while_saving_leaves_whole_checkpoints(start_python, tmp_path):
    assert_only_whole_checkpoints_after_a_kill(start_python, tmp_path / "checkpoints", 8, 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("third", range(3))
def test_a_process_killed_at_random_while_saving_100_megabytes(start_python, tmp_path, third):
    delay_secs = random.Random(third).uniform(0.5 * third, 0.5 * third + 0.5)
    folder = tmp_path / "checkpoints"
    assert_only_whole_checkpoints_after_a_kill(start_python, folder, 100, delay_secs)
