"""Eight real trainings in two slots, killed midway, twice."""

import csv
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from etils import epath

from tests import preloaded
from tests.conftest import python_environment
from tests.processes import wait_for
from vit_jax.store import workdir
from vit_jax.store.metrics import MetricsFile

REPOSITORY = Path(__file__).parents[4]
POINTS, STEPS, SAVE_EVERY, LOG_EVERY = 8, 40, 10, 5
ARGUMENTS = (
    "--config configs/vit_digits.py --config.optim.lr=1e-3,2e-3,4e-3,8e-3 --config.seed=0,1 "
    f"--config.total.epochs=none --config.total.steps={STEPS} --config.model.depth=1 "
    "--config.input.batch_size=32 "
    "--config.optim.warmup_epochs=none --config.optim.warmup_steps=4 "
    f"--config.log.every_steps={LOG_EVERY} --config.log.tensorboard=false "
    f"--config.checkpoint.every_steps={SAVE_EVERY}"
).split()


@pytest.mark.slow
def test_a_sweep_killed_twice_finishes_and_repeats_nothing(tmp_path, preloaded_server):
    """Killed first with its trainings, then without: those continue, and are found."""
    folder = tmp_path / "lr"
    python = str(preloaded_server().write_python(tmp_path / "python"))
    command = [python, "-m", "vit_jax", "sweep", f"--workdir={folder}", "--slots=2", "--"]
    started = time.monotonic()

    def start():
        return subprocess.Popen(
            [*command, *ARGUMENTS],
            cwd=REPOSITORY,
            env=python_environment(**{preloaded.EXECUTABLE: python}),
            stdout=subprocess.PIPE,
            text=True,
        )

    def ended():
        return {name for name in names(folder) if status(folder, name) == STEPS}

    def half_done():
        return {name for name in names(folder) if 0 < status(folder, name) < STEPS}

    first = start()
    wait_for(lambda: len(ended()) >= 2 and half_done(), secs=400)
    os.kill(first.pid, signal.SIGKILL)
    for name in names(folder):
        kill_training(folder / name)
    first.wait()
    after_first = {name: status(folder, name) for name in names(folder)}
    untouched = {name: contents(folder / name) for name in ended()}

    second, alive = start(), set()

    def found_alive():  # read once: a training may end at any moment
        alive.update(half_done() - set(after_first) if len(ended()) >= 5 else ())
        return alive

    wait_for(found_alive, secs=400)
    os.kill(second.pid, signal.SIGKILL)
    second.wait()

    third = start()
    third.communicate(timeout=500)
    assert third.returncode == 0
    assert len(ended()) == POINTS

    # Finished trainings were not touched; begun ones resumed from their newest checkpoint.
    assert {name: contents(folder / name) for name in untouched} == untouched
    for name, saved in after_first.items():
        if 0 < saved < STEPS:
            assert f"resumed  from the checkpoint of step {saved}\n" in log(folder, name)
    # Trainings that outlived a killed sweep were not started again.
    assert alive
    for name in alive:
        assert log(folder, name).count("--- started") == 1
    # Every row is there once, and all starts of all points are accounted for.
    for name in names(folder):
        rows = MetricsFile(epath.Path(folder / name / "metrics.jsonl")).rows()
        assert [row["step"] for row in rows] == list(range(LOG_EVERY, STEPS + 1, LOG_EVERY))
    starts = [log(folder, name).count("--- started") for name in names(folder)]
    assert sum(starts) <= POINTS + 2  # one more for each killed training
    assert all(
        len(workdir.read_document(folder / name)["runs"]) <= count
        for name, count in zip(names(folder), starts, strict=True)
    )
    with (folder / "results.csv").open() as file:
        assert len(list(csv.DictReader(file))) == POINTS
    print(f"{time.monotonic() - started:.0f} s, {sum(starts)} starts, left alive: {alive}")


def names(folder):
    return sorted(child.name for child in folder.glob("*") if child.is_dir())


def status(folder, name):
    """Step of the newest checkpoint."""
    saved = (folder / name / "checkpoints").glob("*")
    return max((int(child.name) for child in saved if child.name.isdigit()), default=0)


def log(folder, name):
    return (folder / name / "log.txt").read_text()


def contents(folder):
    """Modification time of each file."""
    files = (file for file in folder.rglob("*") if file.is_file())
    return {str(file): (file.stat().st_mtime_ns, file.stat().st_size) for file in files}


def kill_training(folder):
    """Kills the process that the slot's file names, if it is still running."""
    pid = json.loads((folder / ".slot").read_text())["pid"]
    try:
        is_ours = str(folder).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return
    if is_ours:
        os.kill(pid, signal.SIGKILL)
