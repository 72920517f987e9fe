"""Processes are threads here, each with its own Peers, and connections are real."""

import queue
import random
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.messages import told
from vit_jax.cluster import connected
from vit_jax.cluster.connected import ConnectedPeers, StopConsensus
from vit_jax.cluster.members import Member
from vit_jax.cluster.rendezvous import Connection
from vit_jax.core.errors import PeerLost

SILENCE_SECS = 1.0
SOON_SECS = 10.0  # generous: the tests share their machine


def connections(pair):
    """Both ends of a connection, after their greetings."""
    ends = [Connection(end, lambda: b"secret", calls=i > 0) for i, end in enumerate(pair)]
    for end in (0, 1, 0):
        ends[end].receive()
    return ends


class Run:
    """Several processes; `lost[i]` is the message that ended process i, if any."""

    def __init__(self, number, silent=(), barrier_timeout_secs=SOON_SECS):
        members = tuple(Member(i, f"host-{i}", 100 + i) for i in range(number))
        self.pairs = {i: socket.socketpair() for i in range(1, number)}
        ends = {i: connections(pair) for i, pair in self.pairs.items()}
        lines = {0: {i: pair[0] for i, pair in ends.items()}}
        lines |= {i: {0: pair[1]} for i, pair in ends.items()}
        self.lost = {}
        self.peers = {
            i: ConnectedPeers(
                members,
                lines[i],
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
    monkeypatch.setattr(connected, "GRACE_SECS", 0.3)


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


def test_a_process_missing_at_a_barrier_is_named():
    run = Run(4, barrier_timeout_secs=0.5)
    messages = run.all(lambda p: p.me.process_id in (1, 3) or p.barrier("before saving step 7"))
    for i in (0, 2):
        told(messages[i], "process 1 (host-1, pid 101)", "process 3 (host-3, pid 103)", "step 7")


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


def test_nobody_waits_for_an_agreement_with_a_lost_process():
    run = Run(3, silent=[2])
    run.peers[1].stop.request("SIGTERM")
    run.all(lambda p: p.lost())
    assert run.all(lambda p: p.stop.should_stop()) == {0: False, 1: False}


CHECKS = 200
WAIT_SECS = 30


class Processes:
    def __init__(self, number, ahead, seed):
        """No process is more than `ahead` checks ahead of another, as under collectives."""
        self.ahead, self.random = ahead, random.Random(seed)
        self.inboxes = [queue.SimpleQueue() for _ in range(number)]
        self.parts = [
            StopConsensus(i, number, lambda to, message, i=i: self.inboxes[to].put((i, message)))
            for i in range(number)
        ]
        self.had = [0] * number
        self.moved = threading.Condition()
        self.delays = [self.random.random() * 2e-3 for _ in range(number)]
        for i in range(number):
            threading.Thread(target=self._listen, args=(i,), daemon=True).start()

    def _listen(self, i):
        while (item := self.inboxes[i].get()) is not None:
            time.sleep(self.delays[i])
            self.parts[i].handle(*item)

    def _train(self, i, ask_at, stopped):
        for check in range(1, CHECKS + 1):
            with self.moved:
                near = lambda check=check: check - min(self.had) <= self.ahead
                assert self.moved.wait_for(near, WAIT_SECS)
            time.sleep(1e-3)  # the step
            if check == ask_at:
                self.parts[i].request(f"SIGTERM to {i}")
            stops = self.parts[i].should_stop()
            with self.moved:
                self.had[i] = check
                self.moved.notify_all()
            if stops:
                stopped[i] = check
                return

    def run(self, ask_at):
        """The check at which each has stopped; `ask_at`: the check at which each process asks."""
        stopped = {}
        threads = [
            threading.Thread(target=self._train, args=(i, ask_at.get(i), stopped), daemon=True)
            for i in range(len(self.parts))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_SECS)
            assert not thread.is_alive()
        for inbox in self.inboxes:
            inbox.put(None)
        return stopped


@pytest.mark.parametrize("seed", range(6))
def test_all_stop_at_the_same_check(seed):
    rng = random.Random(seed)
    number, ahead = rng.randint(2, 5), rng.randint(1, 20)
    askers = rng.sample(range(number), rng.randint(1, number))
    ask_at = {i: rng.randint(1, CHECKS // 2) for i in askers}
    processes = Processes(number, ahead, seed)
    stopped = processes.run(ask_at)
    assert len(stopped) == number
    assert len(set(stopped.values())) == 1, stopped
    assert stopped[0] >= min(ask_at.values())
    assert {part.reason for part in processes.parts} <= {f"SIGTERM to {i}" for i in askers}


def test_no_process_stops_unasked():
    assert not Processes(3, 5, 0).run({})


def test_asked_at_the_last_check_they_come_to_their_end():
    stopped = Processes(3, 2, 0).run({1: CHECKS})
    assert not stopped or set(stopped.values()) == {CHECKS}


def test_the_loss_of_one_ends_the_waiting():
    part = StopConsensus(1, 2, lambda i, message: None)
    part.handle(0, {"count": "SIGTERM to process 0"})  # and then never sends what was agreed on
    threading.Timer(0.2, part.give_up).start()
    assert not part.should_stop()
