"""How the C library hands out the host's memory: on a CPU, what a step's arrays lie in.

XLA asks for all temporary memory of a step at once and gives it back at its end. glibc passes so
large a piece on to the kernel, which then clears it page by page for the next step: a third of the
step's time. Kept by the process, in huge pages, it costs nothing.
"""

from __future__ import annotations

import os
import platform
import sys

_VARIABLE = "GLIBC_TUNABLES"
_TUNABLES = {
    "glibc.malloc.hugetlb": 1,  # pages of 2 MiB where the kernel gives them (madvise)
    "glibc.malloc.arena_max": 1,  # the others of glibc's arenas map whatever is large anew
    "glibc.malloc.mmap_max": 0,
    "glibc.malloc.trim_threshold": 2**40,  # bytes; in effect: never give back
}


def settings() -> dict[str, str]:
    """Environment variables to start a process with; empty where there is no glibc."""
    if platform.libc_ver()[0] != "glibc":
        return {}
    return {_VARIABLE: ":".join(f"{name}={value}" for name, value in _TUNABLES.items())}


def keep() -> None:
    """Starts this process anew with `settings`: glibc reads them only then. Its id stays.

    Nothing happens where GLIBC_TUNABLES is set already, by the user or by this function.
    """
    if settings() and _VARIABLE not in os.environ:
        sys.stdout.flush()
        os.execve(sys.executable, sys.orig_argv, os.environ | settings())
