"""Requests to stop, by SIGTERM or SIGINT.

During training they set a flag that the loop checks after every step (StopRequest); where there is
nothing to save they end the command (at_once).
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def at_once(what: str) -> Iterator[None]:
    """Context in which a signal raises, e.g., KeyboardInterrupt("Stopped by SIGTERM <what>").

    Outside the main thread, where Python allows no handlers, it has no effect.
    """

    def end(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(f"Stopped by {signal.Signals(number).name} {what}")

    before = _handle(end)
    try:
        yield
    finally:
        _restore(before)


class StopRequest:
    """Context manager, `with StopRequest() as stop:`; bool(stop) is whether a signal has come.

    The first is answered at once, on standard error, with what happens now. A second SIGINT ends
    the process at once, without saving. Python's own handlers have to wait while the main thread
    computes or compiles, so a thread that the system's handler notifies does both. Outside the main
    thread, where Python allows no handlers, no signal is ever seen.

    Args:
      what: what happens after the first signal, for the message, such as "saving".
    """

    def __init__(self, what: str = "") -> None:
        self._what = what
        self._name = ""
        self._before: dict[signal.Signals, Any] = {}
        self._wakeup_before = -1
        self._ends: tuple[socket.socket, socket.socket] | None = None
        self._listener: threading.Thread | None = None

    def __bool__(self) -> bool:
        return bool(self._name)

    def __str__(self) -> str:
        """The name of the signal that came, such as SIGTERM."""
        return self._name

    def __enter__(self) -> StopRequest:
        self._before = _handle(self._on_signal)
        if self._before:
            reads, writes = self._ends = socket.socketpair()
            writes.setblocking(False)  # as the system's handler requires
            self._wakeup_before = signal.set_wakeup_fd(writes.fileno(), warn_on_full_buffer=False)
            self._listener = threading.Thread(target=self._listen, args=(reads,), daemon=True)
            self._listener.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._ends and self._listener:
            reads, writes = self._ends
            signal.set_wakeup_fd(self._wakeup_before)
            writes.close()  # makes the listener end
            self._listener.join()
            reads.close()
        _restore(self._before)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._name = self._name or signal.Signals(number).name

    def _listen(self, reads: socket.socket) -> None:
        asked = False
        while numbers := reads.recv(1):
            number = numbers[0]
            if number not in SIGNALS:
                continue
            if asked and number == signal.SIGINT:
                os._exit(128 + number)
            if not asked and self._what:
                _say(f"{signal.Signals(number).name}: {self._what}")
            asked = True


def _say(text: str) -> None:
    """Prints on a new line, even after an unfinished line of progress on the terminal."""
    start = "\r\x1b[K" if sys.stderr.isatty() else ""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"{start}{text}\n")
        sys.stderr.flush()


def _handle(handler: Callable[[int, FrameType | None], None]) -> dict[signal.Signals, Any]:
    """Sets the handlers; returns the previous ones."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.signal(number, handler) for number in SIGNALS}


def _restore(before: dict[signal.Signals, Any]) -> None:
    for number, handler in before.items():
        signal.signal(number, handler)
