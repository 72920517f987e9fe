"""All processes stop at the same place, though each is asked, or hears of it, at another time.

Every process looks, again and again, whether it is to stop: in the same places and order, but not
at the same time, since one runs some steps ahead of another. So they count their looks. When one
is asked to stop, process 0 has all of them say how often they have looked; from its answer on a
process waits at its next look. They stop at the first look that none of them has had.

Not JAX's own preemption service, which does the same: it has one counter a process, and orbax,
saving, counts its steps with it.
"""

import threading
from collections.abc import Callable
from typing import Any

from vit_jax.cluster.connection import Message


class StopConsensus:
    """One process's part.

    Args:
      process_id: this one's.
      number: of processes.
      send: `send(i, message)` brings process i's `take` the message; i is 0 but at process 0.
    """

    def __init__(self, process_id: int, number: int, send: Callable[[int, Message], Any]):
        self._me, self._number, self._send = process_id, number, send
        self._changed = threading.Condition()
        self._looks = 0
        self._counting = False  # from this process's answer until what they agreed on
        self._agreed: int | None = None
        self._reason = ""
        self._counts: dict[int, int] = {}  # at process 0
        self._gone = False

    @property
    def reason(self) -> str:
        """What the first to ask said."""
        return self._reason

    def ask(self, reason: str) -> None:
        """Has all processes stop soon."""
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
        """A process was lost: nobody waits for an agreement any more."""
        with self._changed:
            self._gone = True
            self._changed.notify_all()

    def take(self, i: int, message: Message) -> None:
        """What process i says; to be called by one thread alone, but for `ask`."""
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
        """At process 0: the first look that none of them has had."""
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
