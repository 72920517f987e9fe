"""scripts/cloud_tpu.sh against a fake gcloud, whose workers are two folders."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.messages import failed, told

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the workers are Linux machines")

FAKE = Path(__file__).parent / "fake_gcloud.py"
SLICE = ("--name=l16", "--zone=us-west4-a")
WANTED = (*SLICE, "--type=v5litepod-16", "--poll_secs=0.05")
CONFIG = Path(__file__).parents[2] / "configs" / "vit_digits.py"
TRAINING = ("--", "--config", "configs/vit_digits.py", "--workdir=gs://bucket/l16", "--name=a b")

# A Python for the workers' environments. Its training ends with the next status in ~/statuses, or
# with 0; "wait" continues until it is stopped.
PYTHON = """
case $* in
  *vit_jax.train*)
    echo "training: ${*:3}"
    status=$(head -n 1 ~/statuses 2>/dev/null)
    sed -i 1d ~/statuses 2>/dev/null
    if [[ $status == wait ]]; then
      trap 'exit 75' TERM
      while true; do sleep 0.05; done
    fi
    echo "status ${status:-0}"
    exit "${status:-0}" ;;
  *"pip install"*) echo pip install >>~/installed ;;
esac
"""


class World:
    """The fake's state, and the launcher that changes it."""

    def __init__(self, folder, launch, programs):
        self.folder = folder
        self._launch = launch
        programs(
            gcloud=f'exec {shlex.quote(sys.executable)} -S {shlex.quote(str(FAKE))} "$@"',
            hostname='echo "t1v-$(basename "$HOME")"',
        )
        (folder / "python").write_text(f"#!/usr/bin/env bash\n{PYTHON}")

    def __call__(self, *arguments, **env):
        return self._launch(
            "cloud_tpu.sh", *arguments, WORLD=str(self.folder), FOLLOW_SECS="0.1", **env
        )

    def tell(self, file, text):
        (self.folder / file).parent.mkdir(exist_ok=True)
        (self.folder / file).write_text(text)

    def calls(self, text=""):
        file = self.folder / "calls"
        return [c for c in file.read_text().splitlines() if text in c] if file.exists() else []

    def forget_calls(self):
        (self.folder / "calls").unlink(missing_ok=True)


@pytest.fixture
def world(tmp_path, launch, programs):
    folder = tmp_path / "world"
    folder.mkdir()
    made = World(folder, launch, programs)
    yield made
    if (folder / "w-0").exists():  # ends what a test left running
        (folder / "request").write_text("ACTIVE")
        made("stop", *SLICE)


def test_a_run_from_start_to_end(world):
    done = world(*WANTED, *TRAINING)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "training: --config configs/vit_digits.py" in done.stdout
    assert "The training has finished on all workers" in done.stdout
    assert "delete --name=l16" in done.stdout  # the slice still exists, and costs money
    for worker in ("w-0", "w-1"):
        (log,) = (world.folder / worker / "launched").glob("*/log")
        assert "--workdir=gs://bucket/l16 --name=a b" in log.read_text()
    # Started again, it does nothing.
    world.forget_calls()
    done = world(*WANTED, *TRAINING)
    assert "has finished" in done.stdout
    assert "status 0" in done.stdout
    assert len(world.calls()) == 3  # state of the request, state of the workers, their last output


def test_the_slice_is_deleted_on_request(world):
    done = world(*WANTED, "--delete", *TRAINING)
    assert done.returncode == 0
    assert "--force" in world.calls("queued-resources delete")[0]
    assert not (world.folder / "request").exists()


STEPS = (
    "queued-resources describe",
    "queued-resources create",
    "tpu_worker.sh status",
    "tpu-vm scp",
    "tpu_worker.sh install",
    "tpu_worker.sh start",
    "tpu_worker.sh follow",
)


QUICK = ("queued-resources create", "tpu_worker.sh start")  # behind them a repetition costs most


def cuts():
    """All (step, after) pairs."""
    return [
        pytest.param(
            step,
            after,
            id=f"{'after' if after else 'before'} {step}",
            marks=() if after and step in QUICK else pytest.mark.slow,
        )
        for step in STEPS
        for after in (False, True)
    ]


@pytest.mark.parametrize(("step", "after"), cuts())
def test_interrupted_at_any_step_the_same_command_goes_on(world, step, after):
    """Killed right before gcloud does its work, or right after."""
    world.tell("cut", step)
    if after:
        world.tell("after", "")
    assert world(*WANTED, *TRAINING).returncode == -9
    assert not (world.folder / "cut").exists()
    done = world(*WANTED, *TRAINING)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "has finished" in done.stdout
    created = len(world.calls("queued-resources create"))
    assert created == (2 if step == "queued-resources create" and not after else 1)
    installed = (world.folder / "w-1" / "installed").read_text().count("pip install")
    assert installed == 1


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_a_failed_step_is_reported_or_retried(world, step):
    world.tell("fail", step)
    done = world(*WANTED, *TRAINING)
    if done.returncode:
        failed(done, "told_to_fail")
        assert any(word in done.stderr for word in ("again", "cannot"))
        done = world(*WANTED, *TRAINING)
    assert done.returncode == 0, done.stdout + done.stderr


def test_after_75_76_or_a_kill_it_restarts(world):
    world.tell("cut", "tpu_worker.sh start")
    world(*WANTED, *TRAINING)
    world.tell("w-0/statuses", "75\n76\n137\n0\n")
    done = world(*WANTED, *TRAINING)
    assert done.returncode == 0
    assert done.stdout.count("training: ") == 4
    assert "Ended with status 75" in done.stdout


def test_gives_up_where_restarting_does_not_help(world):
    world.tell("cut", "tpu_worker.sh start")
    world(*WANTED, *TRAINING)
    world.tell("w-0/statuses", "76\n" * 9)
    done = world(*WANTED, *TRAINING)
    assert done.returncode == 1
    assert "five starts in a row" in done.stdout
    assert (world.folder / "w-0/statuses").read_text().count("76") == 4


def test_one_worker_with_an_error_ends_all(world):
    world.tell("cut", "tpu_worker.sh start")
    world(*WANTED, *TRAINING)
    world.tell("w-0/statuses", "wait\n")
    world.tell("w-1/statuses", "1\n")
    done = world(*WANTED, *TRAINING)
    assert done.returncode == 1
    assert "t1v-w-1:" in done.stdout  # the failing worker and its message
    assert "status 1" in done.stdout
    assert "failed" in done.stderr
    assert "Traceback" not in done.stderr
    states = [file.read_text() for file in sorted(world.folder.glob("w-*/launched/*/state"))]
    assert states == ["stopped\n", "failed-1\n"]
    again = world(*WANTED, *TRAINING)  # fixed: it goes on
    assert again.returncode == 0, again.stderr


def test_stop_saves_and_run_goes_on(world):
    world.tell("cut", "tpu_worker.sh start")
    world(*WANTED, *TRAINING)
    world.tell("cut", "tpu_worker.sh follow")
    for worker in ("w-0", "w-1"):
        world.tell(f"{worker}/statuses", "wait\n")
    assert world(*WANTED, *TRAINING).returncode == -9
    assert "running" in world("status", *SLICE).stdout  # without the launcher
    other = world(*WANTED, *TRAINING, "--config.optim.lr=1")
    failed(other, "l16", "--name", "stop")
    assert world("stop", *SLICE).returncode == 0
    assert world("status", *SLICE).stdout.count(" stopped ") == 2
    done = world(*WANTED, *TRAINING)
    assert done.returncode == 0
    assert done.stdout.count("Starting the training") == 1


def started(world):
    """A slice whose training was about to start, and will continue until it is stopped."""
    world.tell("cut", "tpu_worker.sh start")
    world(*WANTED, *TRAINING)
    for worker in ("w-0", "w-1"):
        world.tell(f"{worker}/statuses", "wait\n")
    world.forget_calls()


@pytest.mark.parametrize(
    "states",
    [
        "ACTIVE ACTIVE DELETING",
        *(pytest.param(s, marks=pytest.mark.slow) for s in ("WAITING_FOR_RESOURCES", "SUSPENDING")),
    ],
)
def test_a_slice_that_was_deleted_elsewhere_is_not_asked_for_again(world, states):
    started(world)
    world.tell("request", f"{states} ABSENT")
    done = world(*WANTED, *TRAINING)
    failed(done, "l16 was deleted")
    assert not world.calls("resources create")


def test_after_a_deletion_that_was_under_way_the_slice_is_asked_for(world):
    world.tell("request", "DELETING ABSENT")
    assert world(*WANTED, *TRAINING).returncode == 0


def test_a_training_that_was_stopped_elsewhere_is_not_started_again(world):
    started(world)
    world.tell("stopped", "tpu_worker.sh follow")
    done = world(*WANTED, *TRAINING)
    failed(done, "was stopped", "again goes on", "paid")
    assert len(world.calls("tpu_worker.sh start")) == 1
    done = world(*WANTED, *TRAINING)  # as it says
    assert done.returncode == 0, done.stderr


def test_a_worker_that_is_shut_down_gets_its_training_again(world):
    """SIGTERM from the machine, which nobody has asked for."""
    started(world)
    world.tell("shut_down", "tpu_worker.sh follow")
    done = world(*WANTED, *TRAINING)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Starting the training") == 2


def test_what_ended_before_a_mended_clone_was_installed_is_no_news(world, clone):
    started(world)
    world.tell("w-0/statuses", "1\n")
    world.tell("w-1/statuses", "1\n")
    assert world(*WANTED, *TRAINING).returncode == 1
    (clone / "mended.py").write_text("")
    done = world(*WANTED, *TRAINING)
    assert done.returncode == 0, done.stderr


def test_gcloud_may_fail_for_a_moment_once_it_has_answered(world):
    world.tell("request", "WAITING_FOR_RESOURCES ERROR SUSPENDED")
    done = world(*WANTED, *TRAINING)
    assert done.returncode == 0, done.stderr
    assert "cannot say what has become of l16; looking again" in done.stdout
    world.tell("request", "WAITING_FOR_RESOURCES" + " ERROR" * 10 + " ACTIVE")
    done = world(*WANTED, *TRAINING)
    failed(done, "ten times in a row", "UNAVAILABLE")


def test_a_replaced_worker_is_set_up_again(world, clone):
    """A worker's machine was replaced or restarted while the others wait for it."""
    world(*WANTED, *TRAINING)
    for file in (world.folder / "w-1").rglob("launched/*/state"):
        file.unlink()
    done = world(*WANTED, *TRAINING)
    assert done.returncode == 0
    assert "Starting the training" in done.stdout
    assert "Installing" not in done.stdout
    # Changed files are installed before the next start.
    (clone / "new.py").write_text("")
    done = world(*WANTED, *TRAINING)
    assert "Installing" in done.stdout
    assert done.returncode == 0
    assert (world.folder / "w-1/vit_jax/new.py").exists()


def test_a_reclaimed_slice_is_requested_again(world):
    world.tell("request", "SUSPENDING\nSUSPENDED")
    done = world(*WANTED, *TRAINING)
    assert done.returncode == 0
    assert "taken back" in done.stdout
    assert len(world.calls("resources delete")) == len(world.calls("resources create")) == 1


def test_a_slice_of_another_type_is_refused(world):
    world.tell("cut", "tpu_worker.sh status")
    world(*WANTED, *TRAINING)
    done = world(*SLICE, "--type=v5litepod-32", *TRAINING)
    failed(done, "v5litepod-16", "v5litepod-32")


@pytest.mark.parametrize(
    ("file", "text", "status", "words"),
    [
        ("request", "FAILED", 1, ("quota", "delete", "--name=l16")),
        ("ctrl_c", "tpu_worker.sh follow", 130, ("paid", "delete", *SLICE)),  # keeps running
    ],
)
def test_what_fails_or_keeps_running_is_said(world, file, text, status, words):
    world.tell(file, text)
    done = world(*WANTED, *TRAINING)
    assert done.returncode == status
    told(done.stderr, *words)


def test_a_worker_without_a_new_enough_python_fetches_one(clone, programs, tmp_path):
    """On Ubuntu 22.04 uv fetches one, which makes the virtual environment."""
    path = programs(
        curl="echo 'mkdir -p ~/.local/bin; cp \"$UV\" ~/.local/bin/uv'",
        uv='[[ $* != "python find 3.12" ]] || echo "$BASE"',
        base='[[ $2 != venv ]] || { mkdir -p "$3/bin"; cp "$BASE" "$3/bin/python"; }',
    )
    home = tmp_path / "home"
    home.mkdir()
    (home / "vit_jax.cksum").write_text("1-2\n")
    done = subprocess.run(
        ["bash", str(clone / "scripts" / "tpu_worker.sh"), "install"],
        env={
            "PATH": f"{path}:{os.environ['PATH']}",
            "HOME": str(home),
            "VENV": str(home / "venv"),
            "PYTHON": "/nowhere/python3.10",
            "UV": f"{path}/uv",
            "BASE": f"{path}/base",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (home / "venv" / "bin" / "python").exists()
    assert (clone / "installed.cksum").read_text() == "1-2\n"


def test_dry_run_shows_every_command_and_runs_none(world, recorded, tmp_path):
    done = world("--dry_run", *WANTED, "--spot", "--delete", *TRAINING)
    assert done.returncode == 0, done.stderr
    assert not world.calls()
    assert not list((tmp_path / "home").iterdir())
    assert recorded("cloud_tpu.txt", done.stdout)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (SLICE, "cloud_tpu.sh needs --type"),
        ((*WANTED, "--", "--config=a.py", "--workdir=runs/l16"), "has to be gs://"),
        ((*WANTED, *TRAINING, "--config=configs/b.py:x=1"), "--config=configs/b.py: there is no"),
        ((*WANTED, *TRAINING, "--config", str(CONFIG)), "seen from there"),  # not on workers
        ((*SLICE, "--type=v9-16", *TRAINING), "--runtime"),
        (("--name=L 16", "--zone=a", "--type=v2-8", *TRAINING), "small letters"),
    ],
)
def test_wrong_arguments_get_one_message(world, arguments, message):
    done = world(*arguments)
    failed(done, message)
    assert not world.calls()


def test_a_config_that_is_not_sent_is_refused(world, clone):
    (clone / ".gitignore").write_text("/configs\n")
    done = world(*WANTED, *TRAINING)
    failed(done, "configs/vit_digits.py")
    assert not world.calls()
