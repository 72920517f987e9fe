"""Programs that took long to compile are kept for the next start: jax's cache, on by default.

It lies in the user's cache folder, and is found by the program, the devices, the versions and XLA's
flags; on a CPU also by what its cores can do. jax's own variables move it and switch it off
(docs/install.md).

Several processes may use it at once. jax locks it as soon as its size has a limit; without one, a
process could read a file that another is still writing. Each entry has a checksum, and what cannot
be read is compiled.
"""

import collections
from pathlib import Path
from typing import Any, NamedTuple

import filelock
import jax

from vit_jax.core.files.cache_dir import cache_dir

MAX_BYTES = 4 * 2**30  # then what was not used for longest goes
LOCK_FILE = ".lockfile"  # jax's
LOCK_SECS = 10
ENTRY, LAST_USE = "-cache", "-atime"  # endings of the two files of an entry

_events: collections.Counter[str] = collections.Counter()


def use() -> None:
    """Turns the cache on, unless the user has; for commands, before anything is compiled.

    Nothing happens where there is no folder that can be written and locked.
    """
    given = _setting("jax_compilation_cache_dir")  # or JAX_COMPILATION_CACHE_DIR
    if not _setting("jax_enable_compilation_cache") or given == "":
        return
    jax.monitoring.register_event_listener(lambda event, **_: _events.update([event]))
    folder = cache_dir() / "xla" if given is None else Path(given)
    if "://" in str(given) or not _usable(folder):
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if _setting("jax_compilation_cache_max_size") == -1:  # no limit
        jax.config.update("jax_compilation_cache_max_size", MAX_BYTES)


class Tally(NamedTuple):
    """How many programs this process has taken from the cache, and how many it has put there."""

    found: int
    stored: int


def tally() -> Tally:
    """Up to now."""
    names = ("cache_hits", "cache_misses")  # a miss is told only for what is then stored
    return Tally(*(_events[f"/jax/compilation_cache/{name}"] for name in names))


def _setting(name: str) -> Any:
    """Of jax, whose settings type checkers do not know."""
    return getattr(jax.config, name)


def _usable(folder: Path) -> bool:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with filelock.FileLock(folder / LOCK_FILE, timeout=LOCK_SECS):
            _remove_unfinished(folder)
    except (OSError, NotImplementedError):  # read-only, full, or without locks
        return False
    return True


def _remove_unfinished(folder: Path) -> None:
    """Removes entries whose second file is missing: their process was killed between the two.

    jax would take the first, half of which may be missing too, for the whole, and could not store
    anything any more.
    """
    for entry in folder.glob(f"*{ENTRY}"):
        if not entry.with_name(entry.name.removesuffix(ENTRY) + LAST_USE).exists():
            entry.unlink()
