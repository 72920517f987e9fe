"""Huge pages for the memory of a step that runs on a CPU.

XLA asks the C library for all temporary memory of a step at once, which asks the kernel and gives
it back at the end. The kernel clears it anew for each step, by a page fault for every 4 KiB, or for
every 2 MiB, which glibc asks for where it is told to (glibc manual, "Memory Allocation Tunables").
docs/benchmarks.md says what that gains.
"""

import os
import platform
import sys

_VARIABLE = "GLIBC_TUNABLES"


def settings() -> dict[str, str]:
    """Environment variables to start a process with; none where the C library is not glibc."""
    is_glibc = platform.libc_ver()[0] == "glibc"
    return {_VARIABLE: "glibc.malloc.hugetlb=1"} if is_glibc else {}


def use() -> None:
    """Starts this process anew with `settings`, which glibc reads only then; its id stays.

    Nothing happens where GLIBC_TUNABLES is set already, by the user or by this function.
    """
    if settings() and _VARIABLE not in os.environ:
        sys.stdout.flush()
        os.execve(sys.executable, sys.orig_argv, os.environ | settings())
