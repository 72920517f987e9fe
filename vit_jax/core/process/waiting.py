"""What the threads of this process wait for: the files that a message about a hanging disk names.

A read that hangs can be neither timed out nor stopped from Python. So whoever reads says what, and
whoever waits too long for the result looks here.
"""

from __future__ import annotations

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
