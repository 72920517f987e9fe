"""The lock of cloud storage, on TensorStore's local files, which have generations too."""

import json
import os
import subprocess
import sys
import threading
import time

import pytest

from tests.conftest import REPOSITORY
from vit_jax.core.errors import UserError
from vit_jax.store import lease


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(lease, "RENEW_SECS", 0.05)
    monkeypatch.setattr(lease, "LOST_SECS", 0.4)
    monkeypatch.setattr(lease, "_POLL_SECS", 0.05)


@pytest.fixture
def folder(tmp_path):
    return f"file://{tmp_path}/run"


def test_it_is_there_while_it_is_held(folder, tmp_path):
    with lease.held(folder, ".lock"):
        holder = json.loads((tmp_path / "run" / ".lock").read_text())
        assert holder["process"] == os.getpid()
    assert not (tmp_path / "run" / ".lock").exists()


def test_a_second_run_is_refused(folder, capfd):
    refused = pytest.raises(UserError, match=rf"Another run \(process {os.getpid()} on .*wait for")
    with lease.held(folder, ".lock"), refused, lease.held(folder, ".lock"):
        pass
    assert f"process {os.getpid()} on" in capfd.readouterr().err
    with lease.held(folder, ".lock"):
        pass


def test_of_many_at_once_one_gets_it(folder):
    inside, refused, all_tried = [], [], threading.Event()

    def one():
        try:
            with lease.held(folder, ".lock"):
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
    with lease.held(folder, ".lock"):
        pass
    assert "Waiting 0 s to see whether it still is" in capfd.readouterr().err


def test_that_of_a_killed_process_here_is_taken_at_once(folder, monkeypatch, capfd):
    holds = "import sys; from vit_jax.store import lease; lease._Lease(sys.argv[1], '.lock').take()"
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    subprocess.run([sys.executable, "-c", holds, folder], env=environment, check=True)
    monkeypatch.setattr(lease, "LOST_SECS", 3600)
    with lease.held(folder, ".lock"):
        pass
    assert capfd.readouterr().err == ""


def test_one_that_was_taken_over_ends(folder, tmp_path):
    holds = (
        "import sys, time; from vit_jax.store import lease; lease.RENEW_SECS = 0.05\n"
        "with lease.held(sys.argv[1], '.lock'): print('held', flush=True); time.sleep(60)"
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
        assert "taken over by another run (process 7 on other)" in process.stderr.read()
