"""SIGINT and SIGTERM while a command imports what it needs, and nothing is to be saved yet.

Python would answer with the traceback of some import. A command is told from a library by its
start: `python -m` imports the package before sys.argv names the module.
"""

import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

AGAIN = "Start the same command again."
_PREEMPTED = 75  # as in errors.py, of which nothing is imported here
_DEFAULTS: dict[signal.Signals, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
}


def answer_signals() -> None:
    """Where a command starts: a signal ends it at once, with one line and status 75."""
    if sys.argv[:1] != ["-m"] or threading.current_thread() is not threading.main_thread():
        return
    for number, default in _DEFAULTS.items():
        if signal.getsignal(number) is default:  # who ignores them has a reason
            signal.signal(number, _end)


def is_over() -> None:
    """From here on signals are what they are to Python, until the command handles them."""
    for number, default in _DEFAULTS.items():
        if signal.getsignal(number) is _end:
            signal.signal(number, default)


def end_with(status: int) -> None:
    """The other end of a command: a signal that comes so late changes nothing any more."""
    if threading.current_thread() is threading.main_thread():
        for number in _DEFAULTS:
            signal.signal(number, lambda *_: os._exit(status))


def _end(number: int, frame: FrameType | None) -> None:
    del frame
    name = signal.Signals(number).name
    os.write(2, f"Stopped by {name} before anything was begun. {AGAIN}\n".encode())
    os._exit(_PREEMPTED)
