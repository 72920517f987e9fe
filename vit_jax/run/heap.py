"""Keeping the memory of a step for the next one, where a CPU computes (glibc)."""

import ctypes
import importlib.metadata
import importlib.util
import os
import platform
import threading
import time
from pathlib import Path
from typing import Any

from vit_jax.core import machine

# Parameters of mallopt (malloc.h): values that let glibc keep all that is freed, and those that are
# set again when the process has grown too large. Arenas cannot be had back.
_ARENA_MAX, _MMAP_MAX, _TOP_PAD, _TRIM_THRESHOLD = -8, -4, -2, -1
_KEEP = {
    _ARENA_MAX: 1,  # only the first arena can hold large blocks
    _MMAP_MAX: 0,  # large blocks lie in it, too
    _TRIM_THRESHOLD: -1,  # nothing goes back
    _TOP_PAD: 64 * 2**20,  # it grows in large steps
}
_RETURN = {_MMAP_MAX: 65536, _TRIM_THRESHOLD: 128 * 2**10, _TOP_PAD: 128 * 2**10}  # as by default
SHARE = 3  # freed memory is kept up to one part in so many of what the process may use
ROOM_SHARE = 0.5  # of a step's memory, for batches, logged numbers and the like

_is_kept = threading.Event()


def keep_freed_memory() -> bool:
    """Makes glibc keep what is freed, if JAX will compute on a CPU; returns whether it does.

    XLA on a CPU allocates the temporary memory of each step anew. glibc would return it to the
    kernel in between, which clears every page again. To be called before there are threads, which
    would have their own arenas: so before JAX is imported. A variable MALLOC_... is the user's own
    choice. What is kept can grow, to several times what a step needs (see `make_room`). So a thread
    ends this, and returns all that is free, when the process has one part in SHARE of the memory
    that it may use.
    """
    chosen = any(name.startswith("MALLOC_") for name in os.environ)
    if chosen or platform.libc_ver()[0] != "glibc" or not _only_cpu():
        return False
    libc = ctypes.CDLL(None)
    if not all(libc.mallopt(parameter, value) == 1 for parameter, value in _KEEP.items()):
        return False
    threading.Thread(target=_return_from_large_heap, args=(libc, SHARE), daemon=True).start()
    _is_kept.set()
    return True


def make_room(compiled_step: Any) -> None:
    """Makes room in the heap, so that each step's memory can lie where the last one's did.

    To be called when the state is there, before the first step, by the thread that begins steps;
    it does nothing unless freed memory is kept. glibc takes the smallest free block that something
    fits in. Without room for batches, logged numbers and the like, that would be a step's memory,
    between two steps. Pages of the room that nothing uses take no memory.
    """
    if not _is_kept.is_set():
        return
    libc = ctypes.CDLL(None)
    malloc, realloc, free = libc.malloc, libc.realloc, libc.free
    malloc.restype = realloc.restype = ctypes.c_void_p
    malloc.argtypes, free.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]
    realloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    size_bytes = int(ROOM_SHARE * compiled_step.memory_analysis().temp_size_in_bytes)
    room, fence = malloc(size_bytes), malloc(size_bytes)
    realloc(fence, 1)  # stays, or what lies behind would become one with the room
    free(room)
    # An aligned block leaves pieces at its ends. A thread keeps the first seven of each size that
    # it frees, and the block would lack them the next time: it gets seven others to keep.
    for piece in [malloc(size) for size in range(8, 128, 16) for _ in range(7)]:
        free(piece)


def _return_from_large_heap(libc: ctypes.CDLL, share: int) -> None:
    """Waits until the process has 1 / share of the memory; from then on what is freed goes back."""
    most = machine.memory_bytes() // os.sysconf("SC_PAGE_SIZE") // share
    resident = lambda: int(Path("/proc/self/statm").read_text().split()[1])  # pages
    while resident() <= most:
        time.sleep(0.25)
    for parameter, value in _RETURN.items():
        libc.mallopt(parameter, value)
    while True:  # what lies in the heap and is in use now goes back when it has been freed
        libc.malloc_trim(0)
        time.sleep(1)


def _only_cpu() -> bool:
    """Returns whether JAX will compute on the CPU, as far as the environment and packages tell."""
    platforms = os.environ.get("JAX_PLATFORMS")
    if platforms:
        return platforms == "cpu"
    plugins = importlib.metadata.entry_points(group="jax_plugins")
    return not plugins and importlib.util.find_spec("libtpu") is None
