"""Threads that hang in a read which never returns: they cannot be stopped, and must not hold us up.

Python waits at its end for threads that still call it, also for those of tf.data. So whoever gives
up on a thread says so here, and a command then ends without the usual clean-up (command.py).
"""

from __future__ import annotations

import threading

_left_behind: list[threading.Thread] = []


def leave_behind(thread: threading.Thread) -> None:
    """Nobody waits for this thread any more."""
    _left_behind.append(thread)


def any_left_behind() -> bool:
    """Whether one of them still hangs."""
    return any(thread.is_alive() for thread in _left_behind)
