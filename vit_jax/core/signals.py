"""Signals that end a command: as it starts, where nothing has to be saved, and in training.

SIGTERM and SIGINT, SIGHUP of a terminal that is lost, and SIGUSR1, by which SLURM announces the end
of a job. One that is ignored at the start stays ignored, such as SIGHUP under nohup.

During a command's imports they end it with one line (answer_signals), where Python would print the
traceback of some import; so they do wherever there is nothing to save (exit_immediately_on_signal).
During training they set a flag that the loop checks after every step (StopRequest).
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

AGAIN = "Start the same command again."
AT_ONCE = "Ended at once: what was done since the last checkpoint is lost."
_PREEMPTED = 75  # as in errors.py, which is not imported here
DEFAULTS: dict[signal.Signals, Any] = {
    signal.SIGINT: signal.default_int_handler,
    **dict.fromkeys(
        (each for each in signal.Signals if each.name in ("SIGTERM", "SIGHUP", "SIGUSR1")),
        signal.SIG_DFL,
    ),
}
SIGNALS = tuple(DEFAULTS)


def answer_signals() -> None:
    """Makes a signal end the starting command at once, with one line and status 75.

    A command differs from a library in its start: `python -m` imports the package before sys.argv
    names the module.
    """
    if sys.argv[:1] == ["-m"] and threading.current_thread() is threading.main_thread():
        end_at_signals()


def end_at_signals() -> None:
    """Makes a signal end the process at once, until `is_over`."""
    for number, default in DEFAULTS.items():
        if signal.getsignal(number) is default:
            signal.signal(number, _end)


def is_over() -> None:
    """Restores Python's handling of signals, until the command handles them."""
    for number, default in DEFAULTS.items():
        if signal.getsignal(number) is _end:
            signal.signal(number, default)


def end_with(status: int) -> None:
    """Ends a command with this status; a signal that comes so late changes nothing."""
    if threading.current_thread() is threading.main_thread():
        for number in DEFAULTS:
            signal.signal(number, lambda *_: os._exit(status))


def _end(number: int, frame: FrameType | None) -> None:
    del frame
    name = signal.Signals(number).name
    os.write(2, f"Stopped by {name} before anything was begun. {AGAIN}\n".encode())
    os._exit(_PREEMPTED)


@contextlib.contextmanager
def exit_immediately_on_signal(what: str) -> Iterator[None]:
    """Context in which a signal raises, e.g., KeyboardInterrupt("Stopped by SIGTERM <what>").

    Outside the main thread, where Python allows no handlers, it has no effect.
    """

    def end(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(f"Stopped by {signal.Signals(number).name} {what}")

    with _handled_by(end):
        yield


class StopRequest:
    """Context manager, `with StopRequest() as stop:`; bool(stop) is whether a signal has come.

    The first is answered at once, on standard error. A second SIGINT ends the process at once,
    without saving. Python's own handlers have to wait while the main thread computes or compiles,
    so a thread that the system's handler notifies does both. Outside the main thread no signal is
    ever seen.

    Args:
      what: what happens after the first signal, for the message, such as "saving".
      exits: False: a second SIGINT raises KeyboardInterrupt instead, so that a notebook lives on.
    """

    def __init__(self, what: str = "", *, exits: bool = True) -> None:
        self._what, self._exits = what, exits
        self._name = ""
        self._until_exit = contextlib.ExitStack()

    def __bool__(self) -> bool:
        return bool(self._name)

    def __str__(self) -> str:
        """The name of the signal that came, such as SIGTERM."""
        return self._name

    def __enter__(self) -> StopRequest:
        if self._until_exit.enter_context(_handled_by(self._on_signal)):
            self._until_exit.enter_context(self._answering())
        return self

    def __exit__(self, *error: object) -> None:
        self._until_exit.close()

    @contextlib.contextmanager
    def _answering(self) -> Iterator[None]:
        reads, writes = socket.socketpair()
        writes.setblocking(False)  # as the system's handler requires
        before = signal.set_wakeup_fd(writes.fileno(), warn_on_full_buffer=False)
        listener = threading.Thread(target=self._listen, args=(reads,), daemon=True)
        listener.start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            writes.close()  # makes the listener end
            listener.join()
            reads.close()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self._name and number == signal.SIGINT and not self._exits:
            raise KeyboardInterrupt(AT_ONCE)
        self._name = self._name or signal.Signals(number).name

    def _listen(self, reads: socket.socket) -> None:
        asked = False
        while numbers := reads.recv(1):
            number = numbers[0]
            if number not in SIGNALS:
                continue
            if asked and number == signal.SIGINT and self._exits:
                os._exit(128 + number)
            if not asked and self._what:
                line_start = "\r\x1b[K" if sys.stderr.isatty() else ""  # progress may stand there
                with contextlib.suppress(OSError, ValueError):
                    sys.stderr.write(f"{line_start}{signal.Signals(number).name}: {self._what}\n")
                    sys.stderr.flush()
            asked = True


@contextlib.contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[bool]:
    """Context with this handler; False, and nothing is handled, outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield False
        return
    heeded = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in heeded}
    try:
        yield True
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
