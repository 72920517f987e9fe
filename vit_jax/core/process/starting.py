"""SIGINT and SIGTERM during a command's imports, when there is nothing to save yet.

Python would answer with the traceback of some import. A command differs from a library in its
start: `python -m` imports the package before sys.argv names the module.
"""

import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

AGAIN = "Start the same command again."
_PREEMPTED = 75  # as in errors.py, which is not imported here
_DEFAULTS: dict[signal.Signals, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
}


def answer_signals() -> None:
    """Makes a signal end the starting command at once, with one line and status 75."""
    if sys.argv[:1] != ["-m"] or threading.current_thread() is not threading.main_thread():
        return
    for number, default in _DEFAULTS.items():
        if signal.getsignal(number) is default:  # ignoring them is deliberate
            signal.signal(number, _end)


def is_over() -> None:
    """Restores Python's handling of signals, until the command handles them."""
    for number, default in _DEFAULTS.items():
        if signal.getsignal(number) is _end:
            signal.signal(number, default)


def end_with(status: int) -> None:
    """Ends a command with this status; a signal that comes so late changes nothing."""
    if threading.current_thread() is threading.main_thread():
        for number in _DEFAULTS:
            signal.signal(number, lambda *_: os._exit(status))


def _end(number: int, frame: FrameType | None) -> None:
    del frame
    name = signal.Signals(number).name
    os.write(2, f"Stopped by {name} before anything was begun. {AGAIN}\n".encode())
    os._exit(_PREEMPTED)
