"""Memory of this process, and time and memory of others (Linux)."""

import ctypes
import gc
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple


class ProcessCosts(NamedTuple):
    """CPU time of a process and its children, and its peak resident memory."""

    wall_secs: float
    cpu_secs: float
    peak_bytes: int


def of_python(
    *arguments: str,
    quiet: bool = False,
    python: str = sys.executable,
    expected: int = 0,
    environment: Mapping[str, str] = {},
) -> ProcessCosts:
    """Runs Python with these arguments; ends this process too if it has not this exit status.

    environment: further variables.
    """
    started = time.monotonic()
    out = subprocess.DEVNULL if quiet else None
    process = subprocess.Popen([python, *arguments], stdout=out, env=os.environ | environment)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != expected:
        raise SystemExit(f"{' '.join(arguments)} ended with {process.returncode}.")
    secs = time.monotonic() - started
    return ProcessCosts(secs, used.ru_utime + used.ru_stime, 1024 * used.ru_maxrss)


class Memory:
    """Resident memory of this process: at first, and at its peak since."""

    def __init__(self) -> None:
        gc.collect()
        ctypes.CDLL("libc.so.6").malloc_trim(0)  # freed memory is not to count as used
        Path("/proc/self/clear_refs").write_text("5")  # restarts the peak
        self.before_bytes = status_bytes("VmRSS")

    def risen_bytes(self) -> int:
        """How far the peak lies above the start."""
        return status_bytes("VmHWM") - self.before_bytes


def status_bytes(field: str, pid: int | str = "self") -> int:
    """A process's resident memory (VmRSS), or its peak (VmHWM)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (kilobytes,) = (line.split()[1] for line in lines if line.startswith(field + ":"))
    return 1024 * int(kilobytes)
