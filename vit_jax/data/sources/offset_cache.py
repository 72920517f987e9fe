"""Keeps what was found by walking through record files, so that it is done once for a data set.

The cache lies beside the data where that is writable, else in the user's cache folder. It is
only a short cut: a missing, outdated or damaged one is made again.
"""

from __future__ import annotations

import contextlib
import hashlib
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from vit_jax.core.files.cache_dir import users_folder
from vit_jax.core.files.whole_file import whole_file

_FOLDER = ".vit_jax"


def load(files: Sequence[Path]) -> list[np.ndarray] | None:
    """The offsets of each file, int64 [n + 1]; None if they are not known for these very files."""
    for folder in _folders(files):
        # Whatever is wrong with a cache, the answer is the same; zip checks its content's CRC.
        with (
            contextlib.suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile),
            np.load(folder / _name(files)) as cache,
        ):
            if np.array_equal(cache["stamps"], _stamps(files)):
                return np.split(cache["offsets"], cache["ends"][:-1])
    return None


def save(files: Sequence[Path], offsets: Sequence[np.ndarray]) -> None:
    """Writes the cache at once or not at all; without a folder to write to, not at all."""
    ends = np.cumsum([len(of_file) for of_file in offsets])
    for folder in _folders(files):
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            with whole_file(folder / _name(files)) as part, part.open("wb") as file:
                np.savez(file, stamps=_stamps(files), ends=ends, offsets=np.concatenate(offsets))
            return


def _folders(files: Sequence[Path]) -> Iterator[Path]:
    data = files[0].resolve().parent
    if data.stat().st_mode & 0o222:  # read-only is meant, also for root
        yield data / _FOLDER
    yield users_folder() / hashlib.sha256(str(data).encode()).hexdigest()[:16]


def _name(files: Sequence[Path]) -> str:
    names = "\n".join(file.name for file in files)
    return f"{hashlib.sha256(names.encode()).hexdigest()[:16]}.offsets.npz"


def _stamps(files: Sequence[Path]) -> np.ndarray:
    """Size in bytes and time of the last change of each file, int64 [files, 2]."""
    stats = [file.stat() for file in files]
    return np.array([(stat.st_size, stat.st_mtime_ns) for stat in stats], np.int64)
