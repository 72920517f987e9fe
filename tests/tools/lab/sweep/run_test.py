"""Sweeps of the fake trainer, in processes like those of the real one, and by a launcher."""

import csv
import os
import re
import signal
import subprocess
import threading
import time
import types

import pytest
from etils import epath

from tests.messages import refused
from tests.processes import wait_for
from vit_jax.core.errors import Preempted
from vit_jax.tools.lab.sweep import grid, run, slots

POINTS = [f"optim.lr={lr},seed={seed}" for lr in ("1e-3", "3e-3") for seed in (0, 1)]


def rows_of(folder):
    with (folder / "results.csv").open() as file:
        return list(csv.DictReader(file))


def test_all_points_run_once_and_a_finished_sweep_shows_its_results(world, capsys):
    world.sweep(slots=2)
    assert sorted(world.starts()) == POINTS
    rows = rows_of(world.folder)
    assert [row["optim.lr"] for row in rows] == ["3e-3", "3e-3", "1e-3", "1e-3"]
    assert rows[0]["test/accuracy"] == "0.904"
    assert rows[0]["step"] == "40"
    assert rows[0]["train_seconds"] == "4.0"
    capsys.readouterr()
    world.sweep(slots=2)
    assert sorted(world.starts()) == POINTS
    shown = capsys.readouterr().out
    assert "4 points: 4 finished" in shown
    assert "90.40%" in shown


def test_stopped_and_killed_points_start_again_and_failures_wait(world):
    world.fate(POINTS[0], "75 kill 76 0")
    world.fate(POINTS[1], "1 0")
    world.fate(POINTS[2], "2 2")
    result = world.sweep(slots=1)
    assert [why.partition(":")[0] for why in result.failures] == POINTS[1:3]
    assert world.starts().count(POINTS[0]) == 4
    assert [row["state"] for row in rows_of(world.folder)] == ["finished"] * 2 + ["failed"] * 2
    assert len(world.sweep().failures) == 2  # only shows it
    assert world.starts().count(POINTS[1]) == 1
    assert len(world.sweep(retry_failed=True).failures) == 1
    assert world.starts().count(POINTS[1]) == 2


def test_without_progress_it_gives_up(world):
    world.fate(POINTS[0], "kill " * 9)
    (why,) = world.sweep(max_restarts=2).failures
    assert "3 times without a newer checkpoint: SIGKILL" in why
    assert world.starts().count(POINTS[0]) == 3


@pytest.mark.parametrize("listed", [None, "4,7", "4,7,9"])
def test_each_slot_has_its_number_or_one_of_those_listed(world, monkeypatch, listed):
    if listed:
        monkeypatch.setenv("SLOT", listed)
        with refused("--slots=4", f"SLOT={listed}"):
            world.sweep(slots=4, slot_variable="SLOT")
    world.sweep(slots=2, slot_variable="SLOT")
    used = {line.split()[1] for line in (world.home / "starts").read_text().splitlines()}
    assert used == ({"4", "7"} if listed else {"0", "1"})


def test_an_unknown_metric_is_refused_before_the_first_training_where_it_can_be(world):
    for metric in ("x", "test/acuracy"):
        with refused(f"--metric={metric}:"):
            world.sweep(metric=metric)
    assert world.starts() == []
    world.sweep(metric="speed/images_per_second")
    with refused("--metric=train/los:"):
        world.sweep(metric="train/los")


def asleep(world, *points):
    logs = [world.folder / point / "log.txt" for point in points]
    return all(log.exists() and "asleep" in log.read_text() for log in logs)


def test_a_signal_stops_all_and_the_same_command_goes_on(world):
    for point in POINTS[1:3]:
        world.fate(point, "sleep 0")
    process = world.start(slots=2)
    wait_for(lambda: asleep(world, *POINTS[1:3]))
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 75, process.said()
    assert "Stopped by SIGINT; 1 of 4 points finished" in process.said()
    world.sweep(slots=2)
    assert sorted(world.starts()) == sorted([*POINTS, *POINTS[1:3]])


def test_trainings_of_a_killed_sweep_are_not_started_twice(world):
    for point in POINTS[:2]:
        world.fate(point, "sleep 0")
    first = world.start(slots=2)
    wait_for(lambda: asleep(world, *POINTS[:2]))
    second = world.start(slots=2)
    assert second.wait(60) == 1
    assert "Another run" in second.said()
    first.kill()
    first.wait()
    third = world.start(slots=2)
    wait_for(lambda: third.said().count("found") == 2)
    time.sleep(1)
    assert len(world.starts()) == 2  # both slots are taken
    third.send_signal(signal.SIGTERM)  # reaches those, too
    assert third.wait(60) == 75
    world.sweep(slots=2)
    assert sorted(world.starts()) == sorted([*POINTS, *POINTS[:2]])


def test_a_training_started_by_hand_is_awaited(world):
    world.fate(POINTS[0], "sleep")
    (world.folder / POINTS[0]).mkdir(parents=True)
    arguments = ["--workdir", str(world.folder / POINTS[0]), "--config.optim.lr=1e-3"]
    by_hand = subprocess.Popen([*world.fake, *arguments], stdout=subprocess.PIPE)
    by_hand.stdout.readline()
    process = world.start(slots=1)
    wait_for(lambda: "found" in process.said())
    os.kill(by_hand.pid, signal.SIGTERM)
    by_hand.communicate()
    assert process.wait(60) == 0, process.said()
    assert world.starts().count(POINTS[0]) == 2


# Points go to a launcher, a script that records its calls.

# Records its name and ends with the status in the home's file NAME; "train" trains first.
LAUNCHER = """#!/usr/bin/env bash
echo "$1" >>"$FATE/launches"
name=${1#--name=}
shift 2
read -r what status <"$FATE/$name" || true
[[ ${what:-} != train ]] || TRAINER "$@"
echo "said by $name"
exit "${status:-0}"
"""


@pytest.fixture
def launcher(world, tmp_path, monkeypatch):
    """The command to pass as --launcher."""
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "launcher.sh"
    script.write_text(LAUNCHER.replace("TRAINER", " ".join(world.fake)))
    script.chmod(0o755)
    for number in range(1, 5):
        world.fate(f"lr-{number}", "train 0\n")
        (world.folder / POINTS[number - 1]).mkdir(parents=True)
    return str(script)


@pytest.fixture
def launches(world):
    return lambda: sorted((world.home / "launches").read_text().split())


def test_every_point_is_a_job_and_is_followed(world, launcher, launches):
    world.sweep(launcher=launcher, name="lr", slots=2)
    assert launches() == [f"--name=lr-{number}" for number in range(1, 5)]
    assert [row["state"] for row in rows_of(world.folder)] == ["finished"] * 4
    world.sweep(launcher=launcher, name="lr")
    assert len(launches()) == 4  # only shows the results again


def test_a_failed_launch_is_reported_and_repeated(world, launcher, launches, tmp_path):
    world.fate("lr-2", "nothing 1\n")
    with refused("optim.lr=1e", "seed=1"):
        world.sweep(launcher=launcher, name="lr", slots=4)
    log = tmp_path / "launched" / "lr-2.launcher.log"
    assert log.read_text().endswith("said by lr-2\n")
    world.fate("lr-2", "train 0\n")
    world.sweep(launcher=launcher, name="lr")
    assert launches().count("--name=lr-2") == 2
    assert launches().count("--name=lr-1") == 1


def test_jobs_have_names_that_every_launcher_takes_and_that_differ():
    name_of = lambda sweep, n: slots.job_name(grid.Point(n, {}, {}), run.SweepOptions(sweep))
    short = ("lr", "my_study", "Run 2", "2024_lr", "x" * 38)
    expected = ["lr-3", "my-study-3", "run-2-3", "job-2024-lr-3", "x" * 38 + "-3"]
    assert [name_of(name, 3) for name in short] == expected
    names = {name_of(f"vtab_{'x' * 40}-{part}", n) for n in (1, 2) for part in ("choose", "final")}
    assert len(names) == 4 and {len(name) for name in names} == {40}
    assert all(re.fullmatch("[a-z]([-a-z0-9]*[a-z0-9])?", name) for name in names)


def test_nofollow_ends_at_once(world, launcher, launches, capsys):
    for number in range(1, 5):
        world.fate(f"lr-{number}", "submitted 0\n")
    world.sweep(launcher=launcher, name="lr", follow=False)
    assert len(launches()) == 4
    assert "All jobs are launched" in capsys.readouterr().out


def test_ctrl_c_ends_only_the_following(world, launcher):
    for number in range(1, 5):
        world.fate(f"lr-{number}", "submitted 0\n")
    threading.Timer(2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with refused("SIGINT", error=Preempted):
        world.sweep(launcher=launcher, name="lr", slots=4)


def test_a_missing_launcher_is_refused(world, launcher):
    with refused("--launcher", "nowhere.sh"):
        world.sweep(launcher="nowhere.sh", name="lr")


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_remote_folder_needs_a_launcher_also_where_a_dry_run_checks_all(dry_run, monkeypatch):
    flags = types.SimpleNamespace(dry_run=dry_run, json=False, launcher=None)
    monkeypatch.setattr(run, "FLAGS", flags)
    begun = []

    def sweep(_):
        begun.append("run")
        return run.SweepResult([])

    ways = sweep, (lambda _: begun.append("show"))
    with refused("--workdir=gs://bucket/runs"):
        run.run_or_show(*ways, epath.Path("gs://bucket/runs"))
    assert not begun
    flags.launcher = "scripts/slurm.sh"
    run.run_or_show(*ways, epath.Path("gs://bucket/runs"))
    assert begun == ["show" if dry_run else "run"]
