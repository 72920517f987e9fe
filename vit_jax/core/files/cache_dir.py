"""The folder for files that are kept for this user between starts."""

import os
from pathlib import Path


def cache_dir() -> Path:
    """The user's cache folder, not a shared one: programs stored in it are executed."""
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(caches) / "vit_jax"
