"""Processes that are connected: barriers, agreed stops, last messages, and detecting a loss.

Each process keeps the connection to process 0 from the rendezvous (rendezvous.py), and sends
heartbeats on it; process 0 watches all others, the others watch process 0. When one of them is
gone or silent, process 0 tells the rest which. The survivors are not left to XLA, which hangs, or
aborts without naming the lost process.

Not built on JAX's coordination client (jax 0.10.2): when a process dies, the others abort before
Python can name it, since the callback for that ends in std::bad_cast. As recoverable tasks they
survive, but get_live_nodes is a barrier, which hangs while any process does not call it, and the
loss of process 0 still aborts. Nor on its preemption service: it has one counter per process, and
orbax counts its steps with it when saving.
"""

from __future__ import annotations

import dataclasses
import selectors
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vit_jax.cluster.members import Member
from vit_jax.cluster.peers import Peers
from vit_jax.core.errors import PeerLost
from vit_jax.core.signals import StopRequest

if TYPE_CHECKING:
    from vit_jax.cluster.rendezvous import Connection, Message

SIGNS_PER_TIMEOUT = 6
MAX_SIGN_SECS = 5.0
# Time for the main thread to end by itself, with its own error, after a peer was lost.
GRACE_SECS = 5.0
AGAIN = "Start the same command again on every host."


@dataclasses.dataclass
class _Barrier:
    """A barrier's state at process 0: the processes that have reached it."""

    deadline: float
    arrived: set[int] = dataclasses.field(default_factory=set)
    value: Any = None


class ConnectedPeers(Peers):
    """Several processes, seen from one of them, `process_id`.

    A process without a heartbeat for `timeout_secs` counts as lost; the first at a barrier waits
    `barrier_timeout_secs` for the last. on_lost: called with the error, in a separate thread, if a
    process was lost and the main thread has not ended GRACE_SECS later.
    """

    def __init__(
        self,
        members: tuple[Member, ...],
        connections: Mapping[int, Connection],
        process_id: int,
        *,
        timeout_secs: float,
        barrier_timeout_secs: float,
        on_lost: Callable[[PeerLost], Any],
    ):
        super().__init__(members, process_id)
        self._me, self._connections = process_id, dict(connections)
        self._timeout_secs, self._barrier_timeout_secs = timeout_secs, barrier_timeout_secs
        self._on_lost = on_lost
        self._changed = threading.Condition()
        self._barriers: dict[str, _Barrier] = {}
        self._released: dict[str, Any] = {}
        self._verdict: str | None = None
        self._culprits: Sequence[int] = ()
        self._closing = threading.Event()
        self.stop = StopConsensus(
            process_id,
            len(self.members),
            lambda i, message: self._connections[i].send({"stop": message}),
        )
        self._heard = dict.fromkeys(self._connections, time.monotonic())
        self._thread = threading.Thread(target=self._watch, name="peers", daemon=True)
        if self._connections:
            self._thread.start()

    def from_first(self, name: str, value: Any) -> Any:
        """As for one process; raises PeerLost, naming the missing ones, if not all come in time."""
        if self._me == 0:
            self._arrive(0, name, value)
        else:
            self._connections[0].send({"at": name})
        with self._changed:
            self._changed.wait_for(lambda: name in self._released or self._verdict)
            if name not in self._released:
                raise PeerLost(str(self._verdict))
            return self._released.pop(name)

    def request_stop(self, reason: str) -> None:
        """Requests that all processes stop soon."""
        self.stop.request(reason)

    def agreed_stop(self, request: StopRequest) -> AgreedStop:
        """The request of any of the processes."""
        return AgreedStop(request, self)

    def lost(self, wait_secs: float | None = None) -> PeerLost | None:
        """The error for a lost process, if any; waits until a loss would have been noticed.

        wait_secs: how long to wait at most; default: until a silent process counts as lost.
        """
        if wait_secs is None:
            wait_secs = self._timeout_secs + MAX_SIGN_SECS if self._connections else 0
        with self._changed:
            self._changed.wait_for(lambda: self._verdict, timeout=wait_secs)
            return None if self._verdict is None else PeerLost(self._verdict)

    def close(self) -> None:
        """Leaves after a last barrier of all processes, so that none counts as lost."""
        for connection in self._connections.values():
            connection.send({"end": None})
        self._stop()

    def leave(self, last_words: str) -> None:
        """Leaves because of an error, which the others receive before they end."""
        if self._me == 0:
            self._declare_lost([0], _ended(last_words), advice="")
            self._wait_for_departures()
        else:
            self._connections[0].send({"end": last_words})
        self._stop()

    def _stop(self) -> None:
        self._closing.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()
        for connection in self._connections.values():
            connection.close()

    def _wait_for_departures(self) -> None:
        """Lets process 0 leave last: JAX aborts the others as soon as it is gone."""
        with self._changed:
            self._changed.wait_for(
                lambda: not self._connections.keys() & self._heard.keys() - set(self._culprits),
                timeout=2 * GRACE_SECS,
            )

    # The thread.

    def _watch(self) -> None:
        sign_secs = min(MAX_SIGN_SECS, self._timeout_secs / SIGNS_PER_TIMEOUT)
        next_sign, lost_at = 0.0, None
        while not self._closing.is_set():
            self._receive(sign_secs / 2)
            now = time.monotonic()
            if now >= next_sign:
                next_sign = now + sign_secs
                for connection in self._connections.values():
                    connection.send({})
            self._check(now)
            lost_at = now if lost_at is None and self._verdict else lost_at
            if lost_at is not None and now > lost_at + GRACE_SECS:
                threading.Thread(target=self._give_up, name="lost", daemon=True).start()
                lost_at = float("inf")

    def _give_up(self) -> None:
        if self._me == 0:
            self._wait_for_departures()
        self._on_lost(PeerLost(str(self._verdict)))

    def _receive(self, wait_secs: float) -> None:
        with selectors.DefaultSelector() as selector:
            for i in self._heard:
                selector.register(self._connections[i], selectors.EVENT_READ, i)
            for key, _ in selector.select(wait_secs):
                self._read(key.data)
            if not self._heard:  # all have left
                self._closing.wait(wait_secs)

    def _read(self, i: int) -> None:
        messages = self._connections[i].receive()
        self._heard[i] = time.monotonic()
        for message in messages or ():
            self._handle(i, message)
        if messages is None and i in self._heard:
            self._forget(i)
            self._declare_lost([i], "is gone without a word: killed or crashed, or its machine is")

    def _handle(self, i: int, message: Message) -> None:
        if "at" in message:
            self._arrive(i, message["at"], None)
        elif "go" in message:
            self._release(message["go"], message["value"])
        elif "stop" in message:
            self.stop.handle(i, message["stop"])
        elif "lost" in message:
            self._settle(message["who"], message["lost"])
        elif "end" in message:
            self._forget(i)
            if message["end"] is not None:
                self._declare_lost([i], _ended(message["end"]), advice="")

    def _forget(self, i: int) -> None:
        with self._changed:
            del self._heard[i]
            self._changed.notify_all()

    def _check(self, now: float) -> None:
        for i, heard in list(self._heard.items()):
            if now - heard > self._timeout_secs:
                self._declare_lost([i], f"has given no sign of life for {self._timeout_secs:g} s")
        with self._changed:
            barriers = list(self._barriers.items())
        for name, barrier in barriers:
            if now > barrier.deadline:
                late = [m.process_id for m in self.members if m.process_id not in barrier.arrived]
                within = f"within {self._barrier_timeout_secs:g} s"
                self._declare_lost(late, f"did not come to the barrier {name!r} {within}")

    def _arrive(self, i: int, name: str, value: Any) -> None:
        """Records at process 0 that process i has reached a barrier."""
        with self._changed:
            fresh = _Barrier(time.monotonic() + self._barrier_timeout_secs)
            barrier = self._barriers.setdefault(name, fresh)
            barrier.arrived.add(i)
            barrier.value = value if i == 0 else barrier.value
            if len(barrier.arrived) < len(self.members):
                return
            del self._barriers[name]
        for connection in self._connections.values():
            connection.send({"go": name, "value": barrier.value})
        self._release(name, barrier.value)

    def _release(self, name: str, value: Any) -> None:
        with self._changed:
            self._released[name] = value
            self._changed.notify_all()

    def _declare_lost(self, who: Sequence[int], what: str, advice: str = f" {AGAIN}") -> None:
        """Declares these processes lost; process 0 tells all others."""
        names = ", ".join(str(self.members[i]) for i in who)
        verdict = f"{names} {what}.{advice}"
        if self._settle(who, verdict) and self._me == 0:
            for connection in self._connections.values():
                connection.send({"lost": verdict, "who": who})

    def _settle(self, who: Sequence[int], verdict: str) -> bool:
        """Records a verdict; returns whether it is the first, the only one that counts."""
        with self._changed:
            if self._verdict is not None:
                return False
            self._culprits, self._verdict = who, verdict
            self._changed.notify_all()
        self.stop.give_up()
        return True


class StopConsensus:
    """One process's part of the consensus of `number` processes on where all of them stop.

    Every process checks repeatedly whether to stop: in the same places and order, but not at the
    same time, since one runs some steps ahead of another. So they count their checks. When one is
    asked to stop, process 0 asks all of them for their counts; after answering, a process waits at
    its next check. They stop at the first check that none of them has made.

    `send(i, message)` passes the message to process i's `handle`; i is 0 except at process 0.
    """

    def __init__(self, process_id: int, number: int, send: Callable[[int, Message], Any]):
        self._me, self._number, self._send = process_id, number, send
        self._changed = threading.Condition()
        self._checks = 0
        self._counting = False  # from this process's answer until the agreed check
        self._agreed: int | None = None
        self.reason = ""  # of the first request
        self._counts: dict[int, int] = {}  # at process 0
        self._gone = False

    def request(self, reason: str) -> None:
        """Requests that all processes stop soon."""
        message = {"ask": reason}
        if self._me:
            self._send(0, message)
        else:
            self.handle(0, message)

    def should_stop(self) -> bool:
        """Returns whether all stop here; waits while they agree on where."""
        with self._changed:
            self._changed.wait_for(lambda: not self._counting or self._gone)
            self._checks += 1
            return self._agreed is not None and self._checks >= self._agreed

    def give_up(self) -> None:
        """Ends all waiting for an agreement, after a process was lost."""
        with self._changed:
            self._gone = True
            self._changed.notify_all()

    def handle(self, i: int, message: Message) -> None:
        """Handles a message of process i; only `request` may be called from other threads."""
        with self._changed:
            if "ask" in message and not self.reason:  # at process 0, and once
                self.reason = message["ask"]
                self._broadcast({"count": self.reason})
                self._counting, self._counts = True, {0: self._checks}
                self._decide()
            elif "count" in message:
                self.reason, self._counting = message["count"], True
                self._send(0, {"checks": self._checks})
            elif "checks" in message:
                self._counts[i] = message["checks"]
                self._decide()
            elif "agreed" in message:
                self._settle(message["agreed"])

    def _decide(self) -> None:
        """Chooses at process 0 the first check that none of the processes has made."""
        if len(self._counts) == self._number:
            agreed = max(self._counts.values()) + 1
            self._broadcast({"agreed": agreed})
            self._settle(agreed)

    def _settle(self, agreed: int) -> None:
        self._agreed, self._counting = agreed, False
        self._changed.notify_all()

    def _broadcast(self, message: Message) -> None:
        for i in range(1, self._number):
            self._send(i, message)


class AgreedStop:
    """A stop request for all processes; all must call bool() in the same places and order."""

    def __init__(self, request: StopRequest, peers: ConnectedPeers):
        self._request, self._peers = request, peers
        self._asked = self._stopping = False

    def __bool__(self) -> bool:
        if self._request and not self._asked:
            self._asked = True
            self._peers.stop.request(f"{self._request} to {self._peers.me}")
        if not self._stopping:
            self._stopping = self._peers.stop.should_stop()
        return self._stopping

    def __str__(self) -> str:
        """The reason, such as "SIGTERM to process 1 (host, pid 7)"."""
        return self._peers.stop.reason


def _ended(last_words: str) -> str:
    """The verdict on a process with these last words, which include the advice."""
    return f"has ended: {last_words.rstrip('.') or 'an error'}"
