"""Being asked to stop by SIGTERM or SIGINT.

While training they set a flag that the loop looks at after every step (StopRequest); where nothing
is to be saved they end the command (at_once).
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def at_once(what: str) -> Iterator[None]:
    """Within it a signal raises KeyboardInterrupt("Stopped by SIGTERM <what>"), say.

    Outside the main thread, where Python allows no handlers, nothing changes.
    """

    def end(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(f"Stopped by {signal.Signals(number).name} {what}")

    before = _handle(end)
    try:
        yield
    finally:
        _restore(before)


class StopRequest:
    """Within `with StopRequest() as stop:`, bool(stop) says whether a signal has come.

    A second SIGINT ends the process at once, without saving. Outside the main thread, where Python
    allows no handlers, no signal is ever seen.
    """

    def __init__(self) -> None:
        self._name = ""
        self._before: dict[signal.Signals, Any] = {}

    def __bool__(self) -> bool:
        return bool(self._name)

    def __str__(self) -> str:
        """The name of the signal that came, such as SIGTERM."""
        return self._name

    def __enter__(self) -> StopRequest:
        self._before = _handle(self._on_signal)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _restore(self._before)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self._name and number == signal.SIGINT:
            os._exit(128 + number)
        self._name = signal.Signals(number).name


def _handle(handler: Callable[[int, FrameType | None], None]) -> dict[signal.Signals, Any]:
    """Returns the handlers from before."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.signal(number, handler) for number in SIGNALS}


def _restore(before: dict[signal.Signals, Any]) -> None:
    for number, handler in before.items():
        signal.signal(number, handler)
