"""Real processes that only wait for each other, which is much quicker than training."""

import http.server
import os
import re
import signal
import socket
import threading
import time
from contextlib import contextmanager

import pytest

from tests.gloo import without_gloo
from tests.messages import refused
from vit_jax.cluster import start
from vit_jax.cluster.peers import Peers
from vit_jax.cluster.rendezvous import Cluster
from vit_jax.cluster.start import stop_request
from vit_jax.core.signals import StopRequest

SILENCE_SECS = 10
WITHIN_SECS = 120  # time to notice and end; a busy machine needs some of it

PROGRAM = """
import itertools, sys, time
from jax.experimental import multihost_utils
from vit_jax.core import errors
from vit_jax.core import command
from vit_jax.cluster import start
from vit_jax.cluster.rendezvous import Cluster
from vit_jax.cluster.start import stop_request

def main(arguments):
    port, number, i, steps, failing = map(int, arguments)
    with (
        start.connect_processes(
            Cluster(f"localhost:{port}", number, i),
            start_timeout_secs=60,
            peer_timeout_secs={SILENCE_SECS},
            barrier_timeout_secs=60,
        ) as peers,
        stop_request(peers) as stop,
    ):
        for step in range(1, steps + 1):
            multihost_utils.sync_global_devices(str(step))
            print("step", step, flush=True)
            time.sleep(0.05)
            if stop:
                raise errors.Preempted(f"stopped after {step}")
            if i == failing and step == 5:
                raise errors.UserError("val/a.png is a bad image")

command.run(main, positional=True)
""".replace("{SILENCE_SECS}", str(SILENCE_SECS))


class Run:
    def __init__(self, start_python, folder, number, *, steps=1_000_000, failing=99):
        with socket.create_server(("", 0)) as server:
            port = server.getsockname()[1]
        self.outputs = [folder / f"output{i}" for i in range(number)]
        self.processes = [
            start_python(output, "-c", PROGRAM, *map(str, (port, number, i, steps, failing)))
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
    monkeypatch.setattr(start.rendezvous, "meet", meet)
    alone = start.connect_processes(
        Cluster("localhost:1", 2, 1),
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


@pytest.mark.slow
@pytest.mark.parametrize("still", [0, 1])
def test_the_others_name_the_one_that_hangs(run, still):
    processes = run(3)
    processes.wait_for("step 3\n")
    processes.processes[still].send_signal(signal.SIGSTOP)
    assert processes.end(but=still) == [76, 76]
    for i in {0, 1, 2} - {still}:
        message = f"error: {processes.name(still)} has given no sign of life for {SILENCE_SECS} s"
        assert message in processes.output(i)


@pytest.mark.slow
@pytest.mark.parametrize("failing", [0, 1])
def test_the_others_repeat_the_words_of_the_one_that_fails(run, failing):
    processes = run(2, failing=failing)
    other = 1 - failing
    statuses = processes.end()
    assert (statuses[failing], statuses[other]) == (1, 76), processes.output(other)
    words = "val/a.png is a bad image"
    assert words in processes.output(failing)
    assert f"{processes.name(failing)} has ended: {words}" in processes.output(other)
    assert "Traceback" not in processes.output(other)


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


def test_one_process_takes_the_signal_itself():
    with stop_request(Peers.alone()) as stop:
        assert isinstance(stop, StopRequest)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop


def test_on_a_tpu_its_maintenance_is_watched(monkeypatch):
    watched = []
    monkeypatch.setattr(start, "watch_maintenance", lambda: watched.append(1))
    for backend in ("cpu", "tpu"):
        monkeypatch.setattr("jax.default_backend", lambda backend=backend: backend)
        with stop_request(Peers.alone()):
            pass
    assert watched == [1]


@contextmanager
def metadata_server(events):
    """A metadata server that answers each query with the next event; None is an error."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append((self.path, self.headers["Metadata-Flavor"]))
            event = events[len(asked) - 1]
            self.send_response(503 if event is None else 200)
            self.send_header("ETag", f"tag{len(asked)}")
            self.end_headers()
            self.wfile.write((event or "").encode())

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("localhost", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://localhost:{server.server_port}", asked
    server.shutdown()
    server.server_close()


def test_an_event_becomes_a_sigterm(monkeypatch):
    monkeypatch.setattr(start, "RETRY_SECS", 0.01)
    events = ["NONE", "NONE", None, "TERMINATE_ON_HOST_MAINTENANCE"]
    with metadata_server(events) as (url, asked), StopRequest() as stop:
        start.watch_maintenance(url).join(timeout=30)
        assert str(stop) == signal.SIGTERM.name
    assert len(asked) == len(events)
    assert all(flavor == "Google" for _, flavor in asked)
    assert "last_etag=tag2" in asked[-1][0]


def test_elsewhere_nothing_is_watched():
    with StopRequest() as stop:
        start.watch_maintenance("http://localhost:9").join(timeout=30)
        assert not stop
