"""JAX's persistent compilation cache, on by default, in the user's cache folder.

JAX's own variables move it and switch it off (docs/install.md). Several processes may use it at
once. JAX locks it only if its size has a limit; without one, a process could read a file that
another is still writing.
"""

import collections
import functools
from pathlib import Path
from typing import Any, NamedTuple

import filelock
import jax

from vit_jax.core.files import cache_dir, is_remote

MAX_BYTES = 4 * 2**30  # beyond it the least recently used entries are deleted
LOCK_FILE = ".lockfile"  # JAX's
LOCK_SECS = 10
ENTRY, LAST_USE = "-cache", "-atime"  # endings of the two files of an entry

_events: collections.Counter[str] = collections.Counter()


def use() -> None:
    """Turns the cache on, unless the user has; for commands, before anything is compiled.

    Does nothing without a folder that can be written and locked.
    """
    given = _setting("jax_compilation_cache_dir")  # or JAX_COMPILATION_CACHE_DIR
    if not _setting("jax_enable_compilation_cache") or given == "":
        return
    _count_events()
    folder = cache_dir() / "xla" if given is None else Path(given)
    if is_remote(given) or not _usable(folder):
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if _setting("jax_compilation_cache_max_size") == -1:  # no limit
        jax.config.update("jax_compilation_cache_max_size", MAX_BYTES)


@functools.cache
def _count_events() -> None:
    """Counts JAX's events from now on; the second time, as of a second run, does nothing."""
    jax.monitoring.register_event_listener(lambda event, **_: _events.update([event]))


class Tally(NamedTuple):
    """The numbers of programs that this process has found in the cache and stored there."""

    found: int
    stored: int


def tally() -> Tally:
    """The cache's tally up to now."""
    names = ("cache_hits", "cache_misses")  # a miss is counted only if then stored
    return Tally(*(_events[f"/jax/compilation_cache/{name}"] for name in names))


def _setting(name: str) -> Any:
    return getattr(jax.config, name)


def _usable(folder: Path) -> bool:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with filelock.FileLock(folder / LOCK_FILE, timeout=LOCK_SECS):
            # An entry whose second file is missing is of a process that was killed between the
            # two: JAX would take the first, perhaps incomplete, for a whole one.
            for entry in folder.glob(f"*{ENTRY}"):
                if not entry.with_name(entry.name.removesuffix(ENTRY) + LAST_USE).exists():
                    entry.unlink()
    except (OSError, NotImplementedError):  # read-only, full, or without locks
        return False
    return True
