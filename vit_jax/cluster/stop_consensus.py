"""Consensus on where all processes stop, though the requests reach them at different times.

Every process checks repeatedly whether to stop: in the same places and order, but not at the same
time, since one runs some steps ahead of another. So they count their checks. When one is asked to
stop, process 0 asks all of them for their counts; after answering, a process waits at its next
check. They stop at the first check that none of them has made.

JAX's own preemption service, which does the same, cannot be used: it has one counter per process,
and orbax counts its steps with it when saving.
"""

import threading
from collections.abc import Callable
from typing import Any

from vit_jax.cluster.rendezvous import Message


class StopConsensus:
    """One process's part of the consensus of `number` processes.

    `send(i, message)` passes the message to process i's `take`; i is 0 except at process 0.
    """

    def __init__(self, process_id: int, number: int, send: Callable[[int, Message], Any]):
        self._me, self._number, self._send = process_id, number, send
        self._changed = threading.Condition()
        self._looks = 0
        self._counting = False  # from this process's answer until the agreed check
        self._agreed: int | None = None
        self._reason = ""
        self._counts: dict[int, int] = {}  # at process 0
        self._gone = False

    @property
    def reason(self) -> str:
        """The first request's reason."""
        return self._reason

    def ask(self, reason: str) -> None:
        """Requests that all processes stop soon."""
        message = {"ask": reason}
        if self._me:
            self._send(0, message)
        else:
            self.take(0, message)

    def look(self) -> bool:
        """Whether all stop here; waits while they agree on where."""
        with self._changed:
            self._changed.wait_for(lambda: not self._counting or self._gone)
            self._looks += 1
            return self._agreed is not None and self._looks >= self._agreed

    def give_up(self) -> None:
        """Ends all waiting for an agreement, after a process was lost."""
        with self._changed:
            self._gone = True
            self._changed.notify_all()

    def take(self, i: int, message: Message) -> None:
        """Handles a message of process i; only `ask` may be called from other threads."""
        with self._changed:
            if "ask" in message and not self._reason:  # at process 0, and once
                self._reason = message["ask"]
                self._to_others({"count": self._reason})
                self._counting, self._counts = True, {0: self._looks}
                self._decide()
            elif "count" in message:
                self._reason, self._counting = message["count"], True
                self._send(0, {"looks": self._looks})
            elif "looks" in message:
                self._counts[i] = message["looks"]
                self._decide()
            elif "agreed" in message:
                self._conclude(message["agreed"])

    def _decide(self) -> None:
        """Chooses at process 0 the first check that none of the processes has made."""
        if len(self._counts) == self._number:
            agreed = max(self._counts.values()) + 1
            self._to_others({"agreed": agreed})
            self._conclude(agreed)

    def _conclude(self, agreed: int) -> None:
        self._agreed, self._counting = agreed, False
        self._changed.notify_all()

    def _to_others(self, message: Message) -> None:
        for i in range(1, self._number):
            self._send(i, message)
