"""Processes are threads here, each with its own Peers, and connections are real."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from vit_jax.cluster import peers as peers_file
from vit_jax.cluster.peers import Peers
from vit_jax.cluster.rendezvous import Connection, Meeting, Member
from vit_jax.core.errors import PeerLost

SILENCE_SECS = 1.0
SOON_SECS = 10.0  # generous: the tests share their machine


class Run:
    """Several processes; `lost[i]` is the message that ended process i, if any."""

    def __init__(self, number, silent=(), barrier_timeout_secs=SOON_SECS):
        members = tuple(Member(i, f"host-{i}", 100 + i) for i in range(number))
        self.pairs = {i: socket.socketpair() for i in range(1, number)}
        ends = {i: [Connection(end) for end in pair] for i, pair in self.pairs.items()}
        lines = {0: {i: pair[0] for i, pair in ends.items()}}
        lines |= {i: {0: pair[1]} for i, pair in ends.items()}
        self.lost = {}
        self.peers = {
            i: Peers(
                Meeting(members, lines[i]),
                i,
                timeout_secs=SILENCE_SECS,
                barrier_timeout_secs=barrier_timeout_secs,
                on_lost=lambda error, i=i: self.lost.update({i: str(error)}),
            )
            for i in range(number)
            if i not in silent
        }

    def all(self, action):
        """Results or exceptions by process; all perform the action at once."""

        def one(peers):
            try:
                return action(peers)
            except PeerLost as error:
                return str(error)

        with ThreadPoolExecutor() as threads:
            return dict(zip(self.peers, threads.map(one, self.peers.values()), strict=True))

    def kill(self, i):
        """Closes the connection without a word, as the kernel does."""
        self.pairs[i][1].shutdown(socket.SHUT_RDWR)
        self.peers.pop(i, None)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(peers_file, "GRACE_SECS", 0.3)


def test_barriers_and_a_value_for_all():
    run = Run(3)
    assert run.all(lambda p: p.barrier("a")) == {0: None, 1: None, 2: None}
    for _ in range(2):  # a name may be reused
        values = run.all(lambda p: p.from_first("b", p.me.process_id or {"first": 1}))
        assert list(values.values()) == 3 * [{"first": 1}]
    run.all(lambda p: p.close())
    assert not run.lost


def test_a_barrier_waits():
    run, order = Run(2), []

    def late(peers):
        time.sleep(0.3 * peers.me.process_id)
        order.append("came")
        peers.barrier("a")
        order.append("went")

    run.all(late)
    assert order == ["came", "came", "went", "went"]


def test_a_single_process_waits_for_nobody():
    alone = Peers.alone()
    alone.barrier("a")
    assert alone.from_first("b", 3) == 3
    assert alone.lost() is None
    assert not alone.several


def test_a_process_missing_at_a_barrier_is_named():
    run = Run(4, barrier_timeout_secs=0.5)
    messages = run.all(lambda p: p.me.process_id in (1, 3) or p.barrier("before saving step 7"))
    for i in (0, 2):
        assert messages[i].startswith(
            "process 1 (host-1, pid 101), process 3 (host-3, pid 103) did not come to the barrier "
            "'before saving step 7' within 0.5 s."
        )


@pytest.mark.parametrize("i", [1, 2])
def test_a_killed_process_is_noticed(i):
    run = Run(3)
    run.kill(i)
    for lost in run.all(lambda p: str(p.lost())).values():
        assert lost.startswith(f"process {i} (host-{i}, pid 10{i}) is gone without a word")


def test_a_killed_process_0_is_noticed():
    run = Run(3, silent=[0])
    for first, _ in run.pairs.values():
        first.shutdown(socket.SHUT_RDWR)
    for lost in run.all(lambda p: str(p.lost())).values():
        assert lost.startswith("process 0 (host-0, pid 100) is gone without a word")


@pytest.mark.parametrize("i", [0, 1])
def test_a_silent_process_is_noticed(i):
    run = Run(3, silent=[i])
    for lost in run.all(lambda p: str(p.lost())).values():
        assert lost.startswith(f"process {i} (host-{i}, pid 10{i}) has given no sign of life")


@pytest.mark.parametrize("i", [0, 1])
def test_last_words_are_heard(i):
    run = Run(3)
    run.peers[i].leave("val/a.png is a bad image. Mend it.")
    del run.peers[i]
    message = f"process {i} (host-{i}, pid 10{i}) has ended: val/a.png is a bad image. Mend it."
    assert set(run.all(lambda p: str(p.lost())).values()) == {message}


def test_a_main_thread_that_hangs_is_ended():
    run = Run(3)
    run.kill(2)
    deadline = time.monotonic() + SOON_SECS
    while not {0, 1} <= set(run.lost) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert {0, 1} <= set(run.lost)


def test_signs_of_life_keep_a_quiet_run_going():
    run = Run(2)
    time.sleep(2 * SILENCE_SECS)
    run.all(lambda p: p.barrier("still here"))
    run.all(lambda p: p.close())
    assert not run.lost


@pytest.mark.slow
def test_all_stop_at_the_look_that_they_agree_on():
    run = Run(3)

    def train(peers):
        for look in range(1, 1000):
            if look == 5 and peers.me.process_id == 2:
                peers.stop.ask("SIGTERM")
            if peers.stop.look():
                return look
            time.sleep(0.01 * peers.me.process_id)
        return None

    looks = run.all(train)
    assert looks[0] == looks[1] == looks[2], looks
    assert {p.stop.reason for p in run.peers.values()} == {"SIGTERM"}
    run.all(lambda p: p.close())


def test_nobody_waits_for_an_agreement_with_a_lost_process():
    run = Run(3, silent=[2])
    run.peers[1].stop.ask("SIGTERM")
    run.all(lambda p: p.lost())
    assert run.all(lambda p: p.stop.look()) == {0: False, 1: False}
