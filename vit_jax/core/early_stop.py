"""Ctrl-C while a command's modules are still imported: there is nothing to save yet.

Imports take seconds, and an exception raised inside of one is shown as a traceback, or swallowed.
Import this module before the others, and call `over` when the command begins.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

from vit_jax.core import errors


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, b"Interrupted before anything was done: the same command starts again.\n")
    os._exit(errors.EXIT_PREEMPTED)


def begin() -> None:
    """Until `over`, Ctrl-C ends the process in one sentence; where it is ignored, it stays so."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def over() -> None:
    """Ctrl-C is a KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)
