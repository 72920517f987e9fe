"""Keeping the memory of a step for the next one, where a CPU computes (glibc)."""

import ctypes
import importlib.metadata
import importlib.util
import os
import platform
import threading
import time
from pathlib import Path

from vit_jax.core import machine

# Parameters of mallopt (malloc.h), and the values that let glibc keep all that is freed.
_KEEP = (
    (-8, 1),  # M_ARENA_MAX: only the first arena can hold large blocks
    (-4, 0),  # M_MMAP_MAX: large blocks lie in it, too
    (-1, -1),  # M_TRIM_THRESHOLD: nothing goes back
    (-2, 64 * 2**20),  # M_TOP_PAD: it grows in large steps
)
SHARE = 3  # freed memory is kept up to one part in so many of what the process may use


def keep_freed_memory() -> bool:
    """Makes glibc keep what is freed, if JAX will compute on a CPU; returns whether it does.

    XLA on a CPU allocates the temporary memory of each step anew. glibc would return it to the
    kernel in between, which clears every page again. To be called before there are threads, which
    would have their own arenas: so before JAX is imported. A variable MALLOC_... is the user's own
    choice. What is kept grows, to several times what a step needs: a step's memory finds no place
    where something small lies in what the last one freed. So a thread returns all of it when the
    process has one part in SHARE of the memory that it may use.
    """
    chosen = any(name.startswith("MALLOC_") for name in os.environ)
    if chosen or platform.libc_ver()[0] != "glibc" or not _only_cpu():
        return False
    libc = ctypes.CDLL(None)
    if not all(libc.mallopt(parameter, value) == 1 for parameter, value in _KEEP):
        return False
    threading.Thread(target=_trim_large_heap, args=(libc, SHARE), daemon=True).start()
    return True


def _trim_large_heap(libc: ctypes.CDLL, share: int) -> None:
    """Returns freed memory whenever the process has more than 1 / share of the machine's."""
    resident = lambda: int(Path("/proc/self/statm").read_text().split()[1])
    most = machine.memory_bytes() // os.sysconf("SC_PAGE_SIZE") // share  # pages, as in statm
    while True:
        time.sleep(1)
        if resident() > most:
            libc.malloc_trim(0)
            most = max(most, resident() * 5 // 4)  # what is in use cannot be returned


def _only_cpu() -> bool:
    """Returns whether JAX will compute on the CPU, as far as the environment and packages tell."""
    platforms = os.environ.get("JAX_PLATFORMS")
    if platforms:
        return platforms == "cpu"
    plugins = importlib.metadata.entry_points(group="jax_plugins")
    return not plugins and importlib.util.find_spec("libtpu") is None
