import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import jax
import pytest
from etils import epath

from tests.conftest import REPOSITORY
from tests.messages import refused, told
from vit_jax.core.errors import UserError
from vit_jax.store import workdir_lock
from vit_jax.store.workdir_lock import lock

HOLD = """
import sys, time
from vit_jax.store.workdir_lock import lock

with lock(sys.argv[1]):
    print("locked", flush=True)
    time.sleep(300)
"""


@pytest.fixture
def other_run(tmp_path, start_python):
    """A process that holds `tmp_path / "run"`."""
    output = tmp_path / "output"
    process = start_python(output, "-c", HOLD, str(tmp_path / "run"))
    deadline = time.monotonic() + 60
    while output.read_text() != "locked\n":
        assert time.monotonic() < deadline, output.read_text()
        time.sleep(0.02)
    return process


def test_a_second_run_learns_who_holds_the_lock(tmp_path, other_run):
    who = f"process {other_run.pid} on {socket.gethostname()}"
    for _ in range(2):  # the refused one leaves no trace
        with refused(who), lock(tmp_path / "run"):
            pass


def test_a_running_run_is_visible_from_outside(tmp_path, other_run):
    folder = epath.Path(tmp_path / "run")
    assert workdir_lock.is_locked(folder)
    assert not workdir_lock.is_locked(folder, "other")
    other_run.kill()
    other_run.wait()
    assert not workdir_lock.is_locked(folder)
    assert not workdir_lock.is_locked(epath.Path("gs://bucket/run"))


def test_a_process_without_devices_locks_as_a_run_does(tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "process_index", lambda: pytest.fail("asked for devices"))
    with workdir_lock.lock_for_process(epath.Path(tmp_path)):
        assert workdir_lock.is_locked(epath.Path(tmp_path))


def test_a_killed_run_holds_nothing(tmp_path, other_run):
    other_run.send_signal(signal.SIGKILL)
    other_run.wait()
    with lock(tmp_path / "run"):
        held_by = (tmp_path / "run" / ".lock").read_text()
    assert held_by == f"process {os.getpid()} on {socket.gethostname()}\n"


def test_the_lock_ends_with_the_block_and_with_errors(tmp_path):
    with pytest.raises(ZeroDivisionError), lock(tmp_path):
        raise ZeroDivisionError
    with lock(tmp_path), refused(), lock(tmp_path):
        pass


def test_other_processes_of_the_run_take_no_lock(tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    with lock(tmp_path), lock(tmp_path):
        assert list(tmp_path.iterdir()) == []


def test_without_locks_the_run_goes_on(tmp_path, monkeypatch):
    def refuse(*args):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(workdir_lock.fcntl, "flock", refuse)
    with lock(tmp_path), lock(tmp_path):
        pass
    monkeypatch.setattr(workdir_lock, "fcntl", None)
    with lock(tmp_path), lock(tmp_path):
        pass


def test_a_directory_that_cannot_be_written_is_the_users_error(tmp_path):
    (tmp_path / ".lock").mkdir()
    with refused(), lock(tmp_path):
        pass
    (tmp_path / "file").write_text("")
    with refused("--workdir"), lock(tmp_path / "file"):
        pass


def test_a_full_disk_is_the_users_error(tmp_path, monkeypatch):
    def refuse(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", refuse)
    with refused(), lock(tmp_path):
        pass


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(workdir_lock, "RENEW_SECS", 0.05)
    monkeypatch.setattr(workdir_lock, "LOST_SECS", 0.4)
    monkeypatch.setattr(workdir_lock, "_POLL_SECS", 0.05)


@pytest.fixture
def folder(tmp_path):
    return f"file://{tmp_path}/run"


def test_it_is_there_while_it_is_held(folder, tmp_path):
    with workdir_lock.hold_lease(folder, ".lock"):
        holder = json.loads((tmp_path / "run" / ".lock").read_text())
        assert holder["process"] == os.getpid()
    assert not (tmp_path / "run" / ".lock").exists()


def test_a_second_run_is_refused(folder, capfd):
    with (
        workdir_lock.hold_lease(folder, ".lock"),
        refused(f"process {os.getpid()} on"),
        workdir_lock.hold_lease(folder, ".lock"),
    ):
        pass
    assert f"process {os.getpid()} on" in capfd.readouterr().err
    with workdir_lock.hold_lease(folder, ".lock"):
        pass


def test_of_many_at_once_one_gets_it(folder):
    inside, refused, all_tried = [], [], threading.Event()

    def one():
        try:
            with workdir_lock.hold_lease(folder, ".lock"):
                inside.append(1)
                all_tried.wait(10)
        except UserError:
            refused.append(1)

    threads = [threading.Thread(target=one) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        while len(refused) < 5 and thread.is_alive():
            time.sleep(0.01)
    all_tried.set()
    for thread in threads:
        thread.join()
    assert (len(inside), len(refused)) == (1, 5)


@pytest.mark.parametrize(
    "text", [b'{"process": 1, "host": "another", "machine": "x"}', b"\xff", b"[]"]
)
def test_one_that_does_not_change_is_taken_over_after_a_wait(folder, tmp_path, text, capfd):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").write_bytes(text)
    with workdir_lock.hold_lease(folder, ".lock"):
        pass
    assert "Waiting 0 s to see whether it still is" in capfd.readouterr().err


def test_that_of_a_killed_process_here_is_taken_at_once(folder, monkeypatch, capfd):
    holds = (
        "import sys; from vit_jax.store import workdir_lock\n"
        "workdir_lock._Lease(sys.argv[1], '.lock').take()"
    )
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    subprocess.run([sys.executable, "-c", holds, folder], env=environment, check=True)
    monkeypatch.setattr(workdir_lock, "LOST_SECS", 3600)
    with workdir_lock.hold_lease(folder, ".lock"):
        pass
    assert capfd.readouterr().err == ""


def test_one_that_was_taken_over_ends(folder, tmp_path):
    holds = (
        "import sys, time; from vit_jax.store import workdir_lock; workdir_lock.RENEW_SECS = 0.05\n"
        "with workdir_lock.hold_lease(sys.argv[1], '.lock'):\n"
        "    print('held', flush=True); time.sleep(60)"
    )
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(
        [sys.executable, "-c", holds, folder],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout.readline() == "held\n"
        (tmp_path / "run" / ".lock").unlink()  # as if another had waited, and taken it
        (tmp_path / "run" / ".lock").write_text('{"process": 7, "host": "other"}')
        assert process.wait(timeout=30) == 1
        told(process.stderr.read(), "process 7 on other")
