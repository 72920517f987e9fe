"""JAX's cache of compiled programs for tests: small programs too, and no waiting for a lock.

JAX locks the folder of a cache that is limited, and looks at all entries whenever it stores one,
among 1,100 for 0.06 s of CPU time. Here an entry appears whole, by renaming, so that nobody needs
a lock, and the limit is looked at when a session starts.
"""

import contextlib
import os
import shutil
import uuid
from pathlib import Path

import jax
from jax._src.lru_cache import LRUCache

from vit_jax.core.compilation_cache import ENTRY, LAST_USE
from vit_jax.core.files import cache_dir

MAX_BYTES = 2**30
FOLDER = cache_dir() / "tests"  # with JAX's own cache, of fresh interpreters


def use():
    """Makes this process and its forks keep and find every program, unless the user set a cache."""
    if os.environ.get("JAX_COMPILATION_CACHE_DIR") == str(FOLDER):
        LRUCache.get, LRUCache.put = _get, _put
        jax.config.update("jax_compilation_cache_dir", str(FOLDER / "programs"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def limit():
    """Deletes all programs if they are too large."""
    folder = FOLDER / "programs"
    with contextlib.suppress(FileNotFoundError):  # none yet, or one that another process renames
        if sum(e.stat().st_size for e in os.scandir(folder)) > MAX_BYTES:
            shutil.rmtree(folder, ignore_errors=True)


def _get(cache, key):
    with contextlib.suppress(FileNotFoundError):
        return Path(cache.path, key + ENTRY).read_bytes()
    return None


def _put(cache, key, value):
    part = Path(cache.path, f".{uuid.uuid4().hex}.part")
    with contextlib.suppress(OSError):
        part.write_bytes(value)
        Path(cache.path, key + LAST_USE).touch()
        part.replace(part.with_name(key + ENTRY))
