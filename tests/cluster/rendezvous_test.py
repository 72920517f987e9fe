"""Processes are threads here, which exchange the same messages."""

import contextlib
import errno
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.messages import refused, told
from vit_jax.cluster import rendezvous
from vit_jax.cluster.members import Cluster, OtherSecret
from vit_jax.cluster.rendezvous import Connection, meet
from vit_jax.core.errors import PeerLost, UserError

SECRET = b"of this run"
NONCE = b"0" * 64 + b"\n"
SOON_SECS = 10.0


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(rendezvous, "RETRY_SECS", 0.05)
    monkeypatch.setattr(rendezvous, "PORT_BUSY_SECS", 0.2)


@pytest.fixture
def port():
    with socket.create_server(("", 0)) as server:
        return server.getsockname()[1]


def all_meet(port, ids, sizes=(3, 3, 3, 3), timeout_secs=20.0):
    """Outcomes of the processes with these ids: a Meeting each, or an exception."""

    def one(i, size):
        try:
            cluster = Cluster(f"localhost:{port}", size, i)
            return meet(cluster, lambda: SECRET, timeout_secs=timeout_secs)
        except (PeerLost, UserError) as error:
            return error

    with ThreadPoolExecutor() as threads:
        return list(threads.map(one, ids, sizes))


def test_processes_may_come_in_any_order(port):
    meetings = all_meet(port, [2, 0, 1])
    assert [m.process_id for m in meetings[0].members] == [0, 1, 2]
    assert meetings[0].members == meetings[1].members == meetings[2].members
    assert [sorted(m.connections) for m in meetings] == [[0], [1, 2], [0]]


def test_the_port_is_free_again_and_the_lines_stay(port):
    (first, second) = all_meet(port, [0, 1], sizes=(2, 2))
    with socket.create_server(("", port)):  # as JAX's own service does
        first.connections[1].send({"still": "here"})
        assert second.connections[0].receive() == [{"still": "here"}]


def test_a_missing_process_is_named_on_all(port):
    for error in all_meet(port, [0, 2], timeout_secs=0.5):
        assert isinstance(error, PeerLost)
        told(str(error), "process 1 of 3", "process 0 (", "process 2 (")


def test_without_process_0(port):
    (error,) = all_meet(port, [1], timeout_secs=0.3)
    assert isinstance(error, PeerLost)
    told(str(error), f"process 0 at localhost:{port}", "process 1", os.strerror(errno.ECONNREFUSED))


def test_a_name_that_does_not_resolve(monkeypatch):
    def unknown(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with refused("nohost.invalid", error=PeerLost):
        meet(Cluster("nohost.invalid:9999", 2, 1), lambda: SECRET, timeout_secs=0.1)


def test_a_duplicate_process_id_is_refused(port):
    for error in all_meet(port, [0, 1, 1]):
        assert isinstance(error, UserError)
        told(str(error), "--process_id=1")


def test_different_numbers_of_processes(port):
    for error in all_meet(port, [0, 1], sizes=(3, 2)):
        assert isinstance(error, UserError)
        told(str(error), "--num_processes=2", "process 0 (")


def test_a_restarted_process_replaces_the_one_that_ended(port):
    with ThreadPoolExecutor() as threads:
        first = threads.submit(all_meet, port, [0])
        with _connected(port) as end:
            early = Connection(end, lambda: SECRET, calls=True)
            while not early.receive():
                pass
            early.send({"member": [1, "host", 5], "num_processes": 3})
        second, third = all_meet(port, [1, 2])
    assert first.result()[0].members == second.members == third.members


def echo(end):
    """Repeats everything, with the other's own seals."""
    while chunk := end.recv(1 << 16):
        end.sendall(chunk)


# By their names: the bytes that a stranger sends, or all that it does.
STRANGERS = {
    "a port scan": b"",
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "zeros": bytes(5000),
    "empty lines": b"\n" * 5000,
    "a line without an end": b"x" * 2_000_000,
    "nested json": b"[" * 100_000 + b"\n",
    "json of wrong types": b'{"member": [[1], "h", 1], "num_processes": 2}\n',
    "a member without a proof": b'{"member": [1, "h", 1], "num_processes": 2}\n',
    "no seal": NONCE + b'{"member": [1, "h", 1], "num_processes": 2}\n',
    "a wrong seal": NONCE + b"0" * 64 + b'{"member": [-1, "h", 1], "num_processes": 2}\n',
    "nested json behind a seal": NONCE + b"0" * 64 + b"[" * 900 + b"\n",
    "an echo": echo,
}


def do(end, stranger):
    with contextlib.suppress(OSError):  # it was closed
        end.sendall(stranger) if isinstance(stranger, bytes) else stranger(end)


@pytest.mark.parametrize("stranger", STRANGERS.values(), ids=STRANGERS)
def test_a_stranger_changes_nothing(port, capsys, stranger):
    """Neither one that connects to process 0, nor one that listens where process 0 will be."""
    with ThreadPoolExecutor() as threads:
        with socket.create_server(("localhost", port)) as server:
            second = threads.submit(all_meet, port, [1], sizes=(2,))
            for _ in range(2):
                with server.accept()[0] as end:
                    do(end, stranger)
        first = threads.submit(all_meet, port, [0], sizes=(2,))
        with _connected(port) as left, _connected(port) as kept:
            do(left, stranger)
            left.close()
            do(kept, stranger)
            assert first.result()[0].members == second.result()[0].members
    named = "ignored  a connection from 127.0.0.1" in capsys.readouterr().err
    assert named == (stranger != b"")


def test_a_thousand_silent_strangers_hold_neither_the_meeting_nor_descriptors(port, monkeypatch):
    monkeypatch.setattr(rendezvous, "MAX_STRANGERS", 20)
    before = len(os.listdir("/proc/self/fd"))
    with ThreadPoolExecutor() as threads:
        first = threads.submit(all_meet, port, [0], sizes=(2,))
        strangers = [_connected(port) for _ in range(300)]
        (second,) = all_meet(port, [1], sizes=(2,))
        assert first.result()[0].members == second.members
        assert len(os.listdir("/proc/self/fd")) < before + len(strangers) + 50
    for stranger in strangers:
        stranger.close()


def test_silent_guests_have_to_go(port, monkeypatch):
    monkeypatch.setattr(rendezvous, "GREETING_SECS", 0.1)
    with ThreadPoolExecutor() as threads:
        first = threads.submit(all_meet, port, [0], sizes=(2,), timeout_secs=5)
        with _connected(port) as silent:
            silent.settimeout(SOON_SECS)
            assert len(silent.recv(100)) == len(NONCE)
            assert silent.recv(100) == b""  # closed
        all_meet(port, [1], sizes=(2,))
        first.result()


def missing():
    raise OtherSecret(f"no file. {rendezvous.SAME_SECRET}")


@pytest.mark.parametrize("secret", [lambda: b"other", missing], ids=["another", "none"])
def test_a_process_without_the_secret_ends_with_the_cause(port, capsys, secret):
    """Process 0, which a stranger could deceive, goes on, and reports it."""
    with ThreadPoolExecutor() as threads:
        first = threads.submit(all_meet, port, [0], sizes=(2,))
        _connected(port).close()
        with pytest.raises(OtherSecret, match="--workdir has to be one folder"):
            meet(Cluster(f"localhost:{port}", 2, 1), secret, timeout_secs=20)
        (second,) = all_meet(port, [1], sizes=(2,))
        assert first.result()[0].members == second.members
    assert "--workdir has to be one folder" in capsys.readouterr().err


def test_what_is_not_sealed_ends_a_connection():
    ends = socket.socketpair()
    first, second = (Connection(end, lambda: SECRET, calls=i > 0) for i, end in enumerate(ends))
    assert [end.receive() for end in (first, second, first)] == [[], [{}], [{}]]
    second.send({"a": 1})
    line = ends[0].recv(1000)
    for _ in range(2):
        ends[1].sendall(line)
    assert first.receive() is None  # the second is the first's repetition


def test_a_port_in_use_is_refused(port):
    with socket.create_server(("", port)):
        (error,) = all_meet(port, [0])
    assert isinstance(error, UserError)
    told(str(error), f"port {port}")


def _connected(port):
    while True:
        try:
            return socket.create_connection(("localhost", port))
        except OSError:
            time.sleep(0.01)
