"""Features kept on disk by content: of the same weights on the same images they are read again."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import zipfile
from pathlib import Path
from typing import Any

import jax
import numpy as np

from vit_jax.core import pytrees
from vit_jax.core.files import atomic_file, cache_dir

LIMIT_BYTES = 20 * 2**30  # of all kept features; those that were used longest ago go first

Labelled = tuple[np.ndarray, np.ndarray]  # features float32 [N, D], labels int32 [N]


class FeatureCache:
    """The features of one split, by the weights that made them.

    A file is named after a hash of the parameters' names and bits and of `of_data`; one that cannot
    be read counts as missing. Several processes keep nothing: none has all parameters.

    Args:
      of_data: whatever features depend on beside the parameters: images, their preparation, model.
      limit_bytes: of the folder.
    """

    def __init__(self, *of_data: str, limit_bytes: int = LIMIT_BYTES):
        self._of_data, self._limit_bytes = of_data, limit_bytes

    def path(self, params: Any) -> Path:
        """Where the features of these parameters are kept."""
        found = hashlib.sha256()
        for text in self._of_data:
            found.update(hashlib.sha256(text.encode(errors="surrogateescape")).digest())
        for name, array in sorted(pytrees.flatten(params).items()):
            found.update(f"{name} {array.dtype} {array.shape}".encode())
            found.update(np.ravel(jax.device_get(array)).view(np.uint8).data)
        return cache_dir() / "features" / f"{found.hexdigest()}.npz"

    def read(self, params: Any) -> Labelled | None:
        """Kept features and labels; None if there are none."""
        if jax.process_count() > 1:
            return None
        path = self.path(params)
        try:
            with np.load(io.BytesIO(path.read_bytes())) as arrays:
                found = arrays["features"], arrays["labels"]
            os.utime(path)  # it was used now
            return found
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return None

    def write(self, params: Any, labelled: Labelled) -> None:
        """Keeps them; where there is no room, or they exceed the limit, they are not kept."""
        if jax.process_count() > 1 or sum(x.nbytes for x in labelled) > self._limit_bytes:
            return
        path = self.path(params)
        with contextlib.suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with atomic_file(path) as temporary, temporary.open("wb") as file:
                np.savez(file, features=labelled[0], labels=labelled[1])
            _forget(path, self._limit_bytes)


def _forget(newest: Path, limit_bytes: int) -> None:
    """Deletes the files used longest ago, but for `newest`, until all fit into the limit."""
    files = [(newest.stat().st_size, newest)]
    others = ((file.stat(), file) for file in newest.parent.glob("*.npz") if file != newest)
    for status, file in sorted(others, key=lambda each: -each[0].st_mtime_ns):
        files.append((status.st_size, file))
        if sum(size for size, _ in files) > limit_bytes:
            files.pop()
            file.unlink(missing_ok=True)
