"""However a checkpoint's files are damaged, nothing wrong is ever restored."""

import contextlib
import errno
import json
import os
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from etils import epath

from tests.messages import refused
from tests.processes import run_two
from tests.store.conftest import RULES
from vit_jax.core.errors import UserError
from vit_jax.store import array_files, checkpoint_dir
from vit_jax.store.checkpoint_dir import DamagedError
from vit_jax.store.checkpoints import Checkpoints


@pytest.fixture(scope="module")
def saved(tmp_path_factory, make_state):
    """A work directory with steps 1 and 2."""
    folder = tmp_path_factory.mktemp("saved")
    checkpoints = Checkpoints(folder / "checkpoints", **RULES)
    for step in (1, 2):
        checkpoints.save(step, make_state(step), {"classes": ["a"]}, {"accuracy": 0.5})
    checkpoints.close()
    return folder


@pytest.fixture
def run(saved, tmp_path):
    """A copy of it, where `open_checkpoints` looks."""
    return shutil.copytree(saved, tmp_path / "run")


def flip(file):
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def truncate(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def delete(file):
    file.unlink()


@pytest.mark.parametrize("damage", [flip, truncate, delete])
def test_any_file_damaged_in_any_way_restores_the_right_bits(
    saved, run, damage, open_checkpoints, make_state, layout_of
):
    layout = layout_of(make_state(0))
    expected = {step: np.asarray(make_state(step).params["head"]["bias"]) for step in (1, 2)}
    outcomes = set()
    for file in sorted(f for f in (saved / "checkpoints" / "2").rglob("*") if f.is_file()):
        shutil.rmtree(run)
        shutil.copytree(saved, run)
        damage(run / file.relative_to(saved))
        checkpoints = open_checkpoints(best_metric="accuracy")
        state = checkpoints.restore(layout)
        step = int(state.step)
        np.testing.assert_array_equal(state.params["head"]["bias"], expected[step])
        assert checkpoints.latest_step() == step
        assert (run / "damaged" / "2").exists() == (step == 1)
        outcomes.add(step)
    # Some files are orbax's notes and not needed (2), most are (1).
    assert outcomes == {1, 2}


def test_a_damaged_checkpoint_is_not_the_best_one(run, open_checkpoints, make_state, layout_of):
    """Its description, which is intact, has the best value."""
    shutil.rmtree(run / "checkpoints" / "2" / "state")
    checkpoints = open_checkpoints(best_metric="accuracy")
    checkpoints.restore(layout_of(make_state(0)))
    assert checkpoints.best() == (1, 0.5)


def test_a_damaged_checkpoint_is_moved_aside_with_a_notice_and_saved_again(
    run, open_checkpoints, make_state, layout_of, capsys, monkeypatch
):
    """Even where `checkpoints` is a link to another disk."""
    rename = os.rename

    def fail_between_disks(source, target):
        if Path(target).parent == run / "damaged":
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        rename(source, target)

    monkeypatch.setattr("os.rename", fail_between_disks)
    layout = layout_of(make_state(0))
    for time in (1, 2):
        (run / "checkpoints" / "2" / "description" / "metadata").write_text("{")
        checkpoints = open_checkpoints()
        assert int(checkpoints.restore(layout).step) == 1
        notice = capsys.readouterr().err
        assert "checkpoint 2 is damaged" in notice
        assert "going on from step 1" in notice
        assert (run / "damaged" / ("2" if time == 1 else "2-2")).is_dir()
        checkpoints.save(2, make_state(2), {}, None)
        checkpoints.close()
        assert int(open_checkpoints().restore(layout).step) == 2


def test_if_all_are_damaged_it_says_so_and_moves_nothing(
    run, open_checkpoints, make_state, layout_of
):
    shutil.rmtree(run / "checkpoints" / "1" / "description")
    truncate(run / "checkpoints" / "2" / "description" / "metadata")
    with refused("  2: ", "  1: "):
        open_checkpoints().restore(layout_of(make_state(0)))
    assert not (run / "damaged").exists()


def test_a_checkpoint_that_cannot_be_moved_aside_stops_the_run(
    run, open_checkpoints, make_state, layout_of
):
    delete(run / "checkpoints" / "2" / "description" / "metadata")
    (run / "damaged").write_text("a file where the folder should be")
    with refused("checkpoints/2"):
        open_checkpoints().restore(layout_of(make_state(0)))


def test_an_edited_description_is_noticed(run, make_state):
    file = run / "checkpoints" / "2" / "description" / "metadata"
    file.write_text(file.read_text().replace('"classes": ["a"]', '"classes": ["b"]'))
    with refused("checkpoints/2", error=DamagedError):
        checkpoint_dir.read_description(run / "checkpoints" / "2")
    assert checkpoint_dir.find(run).name == "1"


def test_an_array_exchanged_for_another_valid_one_fails_its_checksum(run, make_state, layout_of):
    """Swaps in files of another step, which orbax reads without complaint."""
    there = run / "checkpoints" / "2"
    shutil.rmtree(there / "state")
    shutil.copytree(run / "checkpoints" / "1" / "state", there / "state")
    with refused("checksum", "params/blocks/0/kernel", error=DamagedError):
        checkpoint_dir.read(there, layout_of(make_state(0)))


def test_find_says_when_nothing_is_left(run):
    for step in ("1", "2"):
        delete(run / "checkpoints" / step / "description" / "metadata")
    with refused("  2: ", "  1: "):
        checkpoint_dir.find(run)


def test_too_little_memory_is_not_damage(run, open_checkpoints, make_state, layout_of, monkeypatch):
    def out_of_memory(*args, **kwargs):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")

    checkpoints = open_checkpoints()
    monkeypatch.setattr(array_files.StateHandler, "restore", out_of_memory)
    with pytest.raises(jax.errors.JaxRuntimeError):
        checkpoints.restore(layout_of(make_state(0)))
    assert not (run / "damaged").exists()


@pytest.mark.parametrize("code", [errno.ESTALE, errno.EMFILE, errno.EIO])
@pytest.mark.parametrize("part", ["description", "arrays"])
def test_files_that_cannot_be_read_now_are_not_damage(
    run, open_checkpoints, make_state, layout_of, monkeypatch, part, code
):
    def fail(*args, **kwargs):
        if part == "description":
            raise OSError(code, os.strerror(code))
        raise ValueError(f"UNKNOWN: Error opening driver: {os.strerror(code)}")  # TensorStore's

    checkpoints = open_checkpoints()
    if part == "description":
        monkeypatch.setattr(epath.gpath.PosixGPath, "read_bytes", fail)
    else:
        monkeypatch.setattr(array_files.StateHandler, "restore", fail)
    with refused(os.strerror(code)) as told:
        checkpoints.restore(layout_of(make_state(0)))
    assert not isinstance(told.value, DamagedError)
    assert not (run / "damaged").exists()


def test_best_goes_by_the_log_where_a_checkpoint_cannot_be_read(run, monkeypatch):
    row = {"step": 1, "accuracy": 0.9, "loss": 1.0}
    (run / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    values = lambda metric: checkpoint_dir.metric_values(run / "checkpoints", metric)
    assert values("accuracy") == {1: 0.5, 2: 0.5}

    def fail(data):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(checkpoint_dir, "parse_json", fail)
    assert values("accuracy") == {1: 0.9}
    assert values("loss") == {1: 1.0}


DAMAGED = DamagedError(epath.Path("checkpoints/2"), "its bits have changed")


@pytest.mark.parametrize(
    ("error", "theirs", "expected"),
    [
        (None, 0, None),
        (None, 1, DamagedError),
        (None, 2, UserError),
        (DAMAGED, 0, DamagedError),
        (DAMAGED, 2, UserError),
        (UserError("stale"), 0, UserError),
        (UserError("stale"), 1, UserError),
    ],
)
def test_processes_end_alike_where_one_cannot_read(monkeypatch, error, theirs, expected):
    """theirs: of the other process, 1 where it found damage, 2 where it could not read."""

    def read():
        if error:
            raise error

    gathered = lambda mine: np.array([mine, theirs])
    monkeypatch.setattr(checkpoint_dir.multihost_utils, "process_allgather", gathered)
    with pytest.raises(expected) if expected else contextlib.nullcontext() as raised:
        checkpoint_dir._on_every_process(DAMAGED.folder, read)
    assert expected is None or raised.type is expected


TWO_PROCESSES = """
import shutil, sys
import jax
jax.distributed.initialize(sys.argv[2], num_processes=2, process_id=int(sys.argv[3]))
import jax.numpy as jnp
from etils import epath
from jax.experimental.multihost_utils import sync_global_devices
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from vit_jax.store.checkpoints import Checkpoints

directory = epath.Path(sys.argv[1])
mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
sharded = NamedSharding(mesh, P("data"))

def state_of(step):
    noise = lambda: jax.random.normal(jax.random.key(step), (4, 100_000))
    return {"params": {"x": jax.jit(noise, out_shardings=sharded)()}}

def opened():
    return Checkpoints(directory, keep_last=3, keep_every_steps=None, best_metric=None,
                       best_mode="max")

layout = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
                      state_of(0))
checkpoints = opened()
for step in (1, 2):
    checkpoints.save(step, state_of(step), {}, None)
checkpoints.close()
sync_global_devices("saved")
if jax.process_index() == 0:
    state = directory / "2" / "state"
    if sys.argv[4] == "exchanged":  # sound files, of another step
        shutil.rmtree(state)
        shutil.copytree(directory / "1" / "state", state)
    else:  # what process 0 wrote, and only it will read
        for file in (state / "ocdbt.process_0" / "d").iterdir():
            data = bytearray(file.read_bytes())
            data[len(data) // 2] ^= 1
            file.unlink() if sys.argv[4] == "removed" else file.write_bytes(data)
sync_global_devices("damaged")
checkpoints = opened()
restored = checkpoints.restore(layout)
assert (restored["params"]["x"] == state_of(1)["params"]["x"]).all()
checkpoints.save(2, state_of(2), {}, None)
checkpoints.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["removed", "flipped", "exchanged"])
def test_processes_agree_on_the_checkpoint_before_a_damaged_one(tmp_path, run_python, damage):
    directory = tmp_path / "checkpoints"
    arguments = lambda index, port: [
        "-c", TWO_PROCESSES, str(directory), f"localhost:{port}", str(index), damage,
    ]  # fmt: skip
    done = run_two(run_python, arguments)
    assert ["Notice" in each.stderr for each in done] == [True, False]
    assert sorted(f.name for f in directory.iterdir()) == ["1", "2"]
    assert (tmp_path / "damaged" / "2").is_dir()
