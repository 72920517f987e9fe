"""Processes are threads here; messages between two of them come in order, at any time."""

import queue
import random
import threading
import time

import pytest

from vit_jax.cluster.stop_consensus import StopConsensus

LOOKS = 200
WAIT_SECS = 30


class Processes:
    def __init__(self, number, ahead, seed):
        """No process is more than `ahead` looks ahead of another, as under collectives."""
        self.ahead, self.random = ahead, random.Random(seed)
        self.inboxes = [queue.SimpleQueue() for _ in range(number)]
        self.looks = [
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
            self.looks[i].take(*item)

    def _train(self, i, ask_at, stopped):
        for look in range(1, LOOKS + 1):
            with self.moved:
                near = lambda look=look: look - min(self.had) <= self.ahead
                assert self.moved.wait_for(near, WAIT_SECS)
            time.sleep(1e-3)  # the step
            if look == ask_at:
                self.looks[i].ask(f"SIGTERM to {i}")
            stops = self.looks[i].look()
            with self.moved:
                self.had[i] = look
                self.moved.notify_all()
            if stops:
                stopped[i] = look
                return

    def run(self, ask_at):
        """The look at which each has stopped; `ask_at`: the look at which each process asks."""
        stopped = {}
        threads = [
            threading.Thread(target=self._train, args=(i, ask_at.get(i), stopped), daemon=True)
            for i in range(len(self.looks))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_SECS)
            assert not thread.is_alive()
        for inbox in self.inboxes:
            inbox.put(None)
        return stopped


@pytest.mark.parametrize("seed", range(12))
def test_all_stop_at_the_same_look(seed):
    rng = random.Random(seed)
    number, ahead = rng.randint(2, 5), rng.randint(1, 20)
    askers = rng.sample(range(number), rng.randint(1, number))
    ask_at = {i: rng.randint(1, LOOKS // 2) for i in askers}
    processes = Processes(number, ahead, seed)
    stopped = processes.run(ask_at)
    assert len(stopped) == number
    assert len(set(stopped.values())) == 1, stopped
    assert stopped[0] >= min(ask_at.values())
    assert {look.reason for look in processes.looks} <= {f"SIGTERM to {i}" for i in askers}


def test_no_process_stops_unasked():
    assert not Processes(3, 5, 0).run({})


def test_asked_at_the_last_look_they_come_to_their_end():
    stopped = Processes(3, 2, 0).run({1: LOOKS})
    assert not stopped or set(stopped.values()) == {LOOKS}


def test_the_loss_of_one_ends_the_waiting():
    look = StopConsensus(1, 2, lambda i, message: None)
    look.take(0, {"count": "SIGTERM to process 0"})  # and then never sends what was agreed on
    threading.Timer(0.2, look.give_up).start()
    assert not look.look()
