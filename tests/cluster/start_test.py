"""Real processes that only wait for each other, which is much quicker than training."""

import os
import re
import signal
import socket
import time

import pytest

from tests.gloo import without_gloo
from tests.messages import refused
from vit_jax.cluster import rendezvous, start
from vit_jax.cluster.members import Cluster

SILENCE_SECS = 10
WITHIN_SECS = 120  # time to notice and end; a busy machine needs some of it

PROGRAM = """
import itertools, sys, time
from jax.experimental import multihost_utils
from vit_jax.core import errors
from vit_jax.core import command
from vit_jax.cluster import start
from vit_jax.cluster.members import Cluster
from vit_jax.cluster.stop import stop_request

def main(arguments):
    port, number, i, steps = map(int, arguments)
    with (
        start.connect_processes(
            Cluster(f"localhost:{port}", number, i),
            lambda: b"secret",
            start_timeout_secs=60,
            peer_timeout_secs={SILENCE_SECS},
            barrier_timeout_secs=60,
        ) as peers,
        stop_request(peers) as stop,
    ):
        for step in range(1, steps + 1):
            try:
                multihost_utils.sync_global_devices(str(step))
            except Exception as error:  # as a save does that exchanges something
                raise errors.UserError("Connection reset by peer") from error
            print("step", step, flush=True)
            time.sleep(0.05)
            if stop:
                raise errors.Preempted(f"stopped after {step}")

command.run(main, positional=True)
""".replace("{SILENCE_SECS}", str(SILENCE_SECS))


class Run:
    def __init__(self, start_python, folder, number, *, steps=1_000_000):
        with socket.create_server(("", 0)) as server:
            port = server.getsockname()[1]
        self.outputs = [folder / f"output{i}" for i in range(number)]
        self.processes = [
            start_python(output, "-c", PROGRAM, *map(str, (port, number, i, steps)))
            for i, output in enumerate(self.outputs)
        ]

    def output(self, i):
        return self.outputs[i].read_text()

    def wait_for(self, text):
        deadline = time.monotonic() + WITHIN_SECS
        while text not in self.output(0):
            assert time.monotonic() < deadline, self.output(0)
            assert all(p.poll() is None for p in self.processes), self.output(0)
            time.sleep(0.05)

    def end(self, but=None):
        return [p.wait(WITHIN_SECS) for i, p in enumerate(self.processes) if i != but]

    def name(self, i):
        return f"process {i} ({socket.gethostname()}, pid {self.processes[i].pid})"


@pytest.fixture
def run(start_python, tmp_path):
    """Starts processes; none of them outlives the test."""
    return lambda number, **options: Run(start_python, tmp_path, number, **options)


def test_a_signal_before_the_rendezvous_ends_at_once(monkeypatch):
    meet = lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM)
    monkeypatch.setattr(rendezvous, "meet", meet)
    alone = start.connect_processes(
        Cluster("localhost:1", 2, 1),
        lambda: b"secret",
        start_timeout_secs=1,
        peer_timeout_secs=1,
        barrier_timeout_secs=1,
    )
    with refused("SIGTERM", error=KeyboardInterrupt), alone:
        pass


def test_they_finish_together_and_quietly(run):
    processes = run(2, steps=5)
    assert processes.end() == [0, 0]
    for i in (0, 1):
        assert without_gloo(processes.output(i)).splitlines() == [
            f"step {step}" for step in range(1, 6)
        ]


@pytest.mark.parametrize("killed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_the_others_name_the_one_that_was_killed(run, killed):
    processes = run(3)
    processes.wait_for("step 3\n")
    processes.processes[killed].kill()
    assert processes.end(but=killed) == [76, 76]
    for i in {0, 1, 2} - {killed}:
        message = f"[process {i} of 3] error: {processes.name(killed)} is gone without a word"
        assert processes.output(i).count(message) == 1, processes.output(i)
        assert "Traceback" not in processes.output(i)


def test_a_sigterm_to_one_stops_all_after_the_same_step(run):
    processes = run(2)
    processes.wait_for("step 3\n")
    processes.processes[1].send_signal(signal.SIGTERM)
    assert processes.end() == [75, 75]
    last = [re.search(r"stopped after (\d+)", processes.output(i))[1] for i in (0, 1)]
    assert last[0] == last[1]


ABORTING = """
import ctypes, os, threading
from vit_jax.cluster.start import explained_abort
def explain():
    {explain}
with explained_abort(explain):
    threading.Thread(target=ctypes.CDLL(None).abort).start()  # as C++ does it, without Python
    threading.Event().wait(30)
"""


@pytest.mark.parametrize(
    ("explain", "status"), [("os._exit(76)", 76), ("print('none')", -signal.SIGABRT)]
)
def test_an_abort_that_is_explained_and_one_that_is_not(run_python, explain, status):
    done = run_python("-c", ABORTING.format(explain=explain))
    assert done.returncode == status, done.stderr
