"""Reads that hang, which can be neither timed out nor stopped from Python.

Whoever reads names the file, for the message of whoever waits too long for the result (waits). Who
gives up on a thread abandons it: Python would wait for it at its end, also for those of tf.data, so
the command then ends without the usual clean-up (command.py).
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple


class Wait(NamedTuple):
    """What a thread has been waiting for, and how long."""

    what: str
    secs: float


_open: dict[int, tuple[Callable[[], str], float]] = {}  # by thread; the innermost wait of each


@contextlib.contextmanager
def waiting_for(what: Callable[[], str]) -> Iterator[None]:
    """Around a read. `what` is called only if somebody asks, so it may cost something."""
    thread = threading.get_ident()
    outer = _open.get(thread)
    _open[thread] = (what, time.monotonic())
    try:
        yield
    finally:
        if outer is None:
            del _open[thread]
        else:
            _open[thread] = outer


def waits() -> list[Wait]:
    """What is waited for at this moment, the longest first."""
    now = time.monotonic()
    found = [Wait(what(), now - since) for what, since in list(_open.values())]
    return sorted(found, key=lambda wait: -wait.secs)


_abandoned: list[threading.Thread] = []


def abandon_thread(thread: threading.Thread) -> None:
    """Lets the process end without waiting for this thread."""
    _abandoned.append(thread)


def any_abandoned() -> bool:
    """Whether an abandoned thread still hangs."""
    return any(thread.is_alive() for thread in _abandoned)
