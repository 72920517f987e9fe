"""JAX's client aborts its process as soon as process 0 is gone; here that gets an explanation.

The abort comes from a thread of C++ that never calls Python, so a handler of Python's `signal`
would never run: the C library is asked for one.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def explained_by(explain: Callable[[], object]) -> Iterator[None]:
    """Calls `explain` when this process is about to abort; if it returns, the abort goes on."""
    if os.name != "posix":  # no C library to ask under this name
        yield
        return
    handler_type = ctypes.CFUNCTYPE(None, ctypes.c_int)
    handler = handler_type(lambda number: explain() and None)
    install = ctypes.CDLL(None).signal
    install.argtypes, install.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    before = install(signal.SIGABRT, ctypes.cast(handler, ctypes.c_void_p))
    try:
        yield
    finally:
        install(signal.SIGABRT, before)
