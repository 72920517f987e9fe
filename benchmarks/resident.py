"""Resident memory of this process (Linux)."""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path


class Memory:
    """Resident memory of this process: at first, and at its peak since."""

    def __init__(self) -> None:
        gc.collect()
        ctypes.CDLL("libc.so.6").malloc_trim(0)  # freed memory is not to count as used
        Path("/proc/self/clear_refs").write_text("5")  # restarts the peak
        self.before_bytes = _status_bytes("VmRSS")

    def risen_bytes(self) -> int:
        """How far the peak lies above the start."""
        return _status_bytes("VmHWM") - self.before_bytes


def _status_bytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (kilobytes,) = (line.split()[1] for line in lines if line.startswith(field + ":"))
    return 1024 * int(kilobytes)
