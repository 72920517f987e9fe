"""Where things are kept for this user from one start to the next."""

import os
from pathlib import Path


def cache_dir() -> Path:
    """The user's, not a common one: whoever can write to it decides what is executed."""
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(caches) / "vit_jax"
