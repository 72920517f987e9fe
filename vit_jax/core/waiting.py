"""Reads that hang, which can be neither timed out nor stopped from Python.

A reader names its file, for the message of a caller that waits too long for the result (waits). A
thread that is given up is abandoned: Python would wait for it at exit, as for tf.data's threads,
so the command then ends without the usual clean-up (command.py).
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple


class Wait(NamedTuple):
    """A thread's wait: the object of the wait, and how long it has lasted."""

    what: str
    secs: float


_open: dict[int, tuple[Callable[[], str], float]] = {}  # by thread; the innermost wait of each


@contextlib.contextmanager
def waiting_for(what: Callable[[], str]) -> Iterator[None]:
    """Context for a read; `what` names it and is called only on demand, so it may be slow."""
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
    """The current waits, longest first."""
    now = time.monotonic()
    current = [Wait(what(), now - since) for what, since in list(_open.values())]
    return sorted(current, key=lambda wait: -wait.secs)


_abandoned: list[threading.Thread] = []


def abandon_thread(thread: threading.Thread) -> None:
    """Lets the process end without waiting for this thread."""
    _abandoned.append(thread)


def any_abandoned() -> bool:
    """Returns whether any abandoned thread still hangs."""
    return any(thread.is_alive() for thread in _abandoned)
