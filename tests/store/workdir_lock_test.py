import errno
import os
import socket

import jax
import pytest
from etils import epath

from tests.messages import refused
from tests.processes import wait_for
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
    wait_for(lambda: output.read_text() == "locked\n", what=output.read_text)
    return process


def test_a_second_run_learns_who_holds_the_lock(tmp_path, other_run):
    who = f"process {other_run.pid} on {socket.gethostname()}"
    for _ in range(2):  # the refused one leaves no trace
        with refused(who), lock(tmp_path / "run"):
            pass


def test_a_running_run_is_visible_from_outside_and_a_killed_one_holds_nothing(tmp_path, other_run):
    folder = epath.Path(tmp_path / "run")
    assert workdir_lock.is_locked(folder)
    assert not workdir_lock.is_locked(folder, "other")
    other_run.kill()
    other_run.wait()
    assert not workdir_lock.is_locked(folder)
    assert not workdir_lock.is_locked(epath.Path("gs://bucket/run"))
    (tmp_path / "run" / ".lock").write_text("process 1 on a host of a long name\n" * 9)
    with lock(tmp_path / "run"):
        held_by = (tmp_path / "run" / ".lock").read_text()
    assert held_by == f"process {os.getpid()} on {socket.gethostname()}\n"


def test_a_process_without_devices_locks_as_a_run_does(tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "process_index", lambda: pytest.fail("asked for devices"))
    with workdir_lock.lock_for_process(epath.Path(tmp_path)):
        assert workdir_lock.is_locked(epath.Path(tmp_path))


def test_the_lock_ends_with_the_block_and_with_errors(tmp_path):
    with pytest.raises(ZeroDivisionError), lock(tmp_path):
        raise ZeroDivisionError
    with lock(tmp_path), refused("--workdir"), lock(tmp_path):
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


def test_a_directory_that_cannot_be_written_is_the_users_error(tmp_path, monkeypatch):
    (tmp_path / "a" / ".lock").mkdir(parents=True)
    (tmp_path / "file").write_text("")
    for folder in ("a", "file"):
        with refused("--workdir"), lock(tmp_path / folder):
            pass

    def refuse(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", refuse)
    with refused("--workdir"), lock(tmp_path):
        pass
