"""Being asked to stop: SIGTERM and SIGINT set a flag that the loop looks at after every step."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)


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
        if threading.current_thread() is threading.main_thread():
            self._before = {s: signal.signal(s, self._on_signal) for s in SIGNALS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self._name and number == signal.SIGINT:
            os._exit(128 + number)
        self._name = signal.Signals(number).name
