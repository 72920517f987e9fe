"""Sweeps whose points go to a launcher, a script that records its calls."""

import csv
import os
import signal
import threading

import pytest

from vit_jax.core.errors import Preempted, UserError

POINTS = [f"optim.lr={lr},seed={seed}" for lr in ("1e-3", "3e-3") for seed in (0, 1)]

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
    with (world.folder / "results.csv").open() as file:
        assert [row["state"] for row in csv.DictReader(file)] == ["finished"] * 4
    world.sweep(launcher=launcher, name="lr")
    assert len(launches()) == 4  # only shows the results again


def test_a_failed_launch_is_reported_and_repeated(world, launcher, launches, tmp_path):
    world.fate("lr-2", "nothing 1\n")
    with pytest.raises(
        UserError, match=r"for 1 of 4 points:\n  optim.lr=1e-3,seed=1: said by lr-2"
    ):
        world.sweep(launcher=launcher, name="lr", slots=4)
    assert (tmp_path / "launched" / "lr-2.launcher.log").read_text() == "said by lr-2\n"
    world.fate("lr-2", "train 0\n")
    world.sweep(launcher=launcher, name="lr")
    assert launches().count("--name=lr-2") == 2
    assert launches().count("--name=lr-1") == 1


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
    with pytest.raises(Preempted, match=r"Stopped by SIGINT; 0 of 4 .* and the jobs go on"):
        world.sweep(launcher=launcher, name="lr", slots=4)


def test_a_missing_launcher_is_refused(world, launcher):
    with pytest.raises(UserError, match=r"--launcher: nowhere.sh cannot be started"):
        world.sweep(launcher="nowhere.sh", name="lr")
