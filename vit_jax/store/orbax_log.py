"""Silencing of orbax's log, so that a user error is one readable message.

Orbax logs every failure that it also raises, several tracebacks deep. When a read or a write fails,
the others in flight complain about their closed event loop, and Python about errors never
retrieved and coroutines never awaited. `--verbosity=0` shows all of it.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
import warnings
from types import TracebackType

from absl import logging as absl_logging

ORBAX = f"{os.sep}orbax{os.sep}checkpoint{os.sep}"
LOOP_CLOSED = "Event loop is closed"
NOT_FETCHED = "exception was never retrieved"
NOT_AWAITED = "coroutine 'async_serialize.* was never awaited"

_print_unraisable = sys.unraisablehook


def mute() -> None:
    """Mutes orbax's log from now on, unless absl's verbosity is INFO or more."""
    global _print_unraisable
    # The same function added twice counts once.
    absl_logging.get_absl_logger().addFilter(_passes)
    logging.getLogger("asyncio").addFilter(_passes_asyncio)
    if not _wanted():
        warnings.filterwarnings("ignore", NOT_AWAITED, RuntimeWarning)
    if sys.unraisablehook is not _unraisable:
        _print_unraisable, sys.unraisablehook = sys.unraisablehook, _unraisable


def _passes(record: logging.LogRecord) -> bool:
    return _wanted() or ORBAX not in record.pathname


def _passes_asyncio(record: logging.LogRecord) -> bool:
    return _wanted() or NOT_FETCHED not in record.getMessage()


def _unraisable(unraisable: sys.UnraisableHookArgs) -> None:
    """Hook for exceptions that threads and destructors could not raise."""
    orbax = _is_in_orbax(unraisable.exc_traceback) or str(unraisable.exc_value) == LOOP_CLOSED
    if _wanted() or not orbax:
        _print_unraisable(unraisable)


def _is_in_orbax(trace: TracebackType | None) -> bool:
    return any(ORBAX in frame.filename for frame in traceback.extract_tb(trace))


def _wanted() -> bool:
    return absl_logging.get_verbosity() >= absl_logging.INFO
