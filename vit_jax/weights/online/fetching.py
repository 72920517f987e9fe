"""From a name of weights to a file or folder of this machine."""

import hashlib
import os
from typing import NamedTuple

import filelock
from etils import epath

from vit_jax.core import cloud
from vit_jax.core.files import atomic_file, cache_dir
from vit_jax.weights.online import download, hub
from vit_jax.weights.online.names import parse

_WEIGHTS, _ABOUT = ".safetensors", ".json"


class Fetched(NamedTuple):
    """Weights on this machine, or in this project's cloud storage.

    Attributes:
      path: the file or folder.
      name: the pinned name that it was fetched by; None of a path.
    """

    path: epath.Path
    name: str | None

    def __str__(self) -> str:
        return self.name or str(self.path)


def is_name(path: str | os.PathLike | epath.Path) -> bool:
    """Whether `path` names weights to fetch, and is not a path. UserError: a mistake in a name."""
    return parse(path) is not None


def check_name(path: str) -> None:
    """UserError for a name that cannot be fetched by what is installed; asks no server."""
    name = parse(path)
    if name is not None and name.repository:
        hub.library(path)


def fetch(path: str | os.PathLike | epath.Path) -> Fetched:
    """The weights that a name means, fetched unless the cache has them; a path as it is.

    Raises:
      UserError: a mistake in a name, or it cannot be fetched.
    """
    name = parse(path)
    if name is None:
        folder = epath.Path(path).expanduser()
        return Fetched(_copied(folder) if cloud.is_remote(path) else folder, None)
    called = os.fspath(path)
    if name.repository:
        snapshot = hub.fetch(name.repository, name.pin, name=called)
        return Fetched(epath.Path(snapshot), name.pinned(snapshot.name))
    assert name.url is not None
    kept = download.fetch(name.url, name.pin, name=called)
    return Fetched(epath.Path(kept.path), name.pinned(kept.sha256))


def _copied(folder: epath.Path) -> epath.Path:
    """The copy in the cache of a folder at gs:// with safetensors, which are mapped into memory.

    Any other folder as it is. Where names, sizes and times of its files are as they were, they are
    not copied again.
    """
    if not cloud.is_folder(folder):
        return folder
    files = [path for path in folder.iterdir() if path.name.endswith((_WEIGHTS, _ABOUT))]
    if not any(path.name.endswith(_WEIGHTS) for path in files):
        return folder
    stats = sorted((path.name, path.stat().length, path.stat().mtime) for path in files)
    key = hashlib.sha256(repr((str(folder), stats)).encode()).hexdigest()[:16]
    target = cache_dir() / "weights" / key / folder.name
    target.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(target.parent / ".lock"):
        for path in files:
            if not (target / path.name).exists():
                with atomic_file(target / path.name) as temporary:
                    path.copy(temporary, overwrite=True)
    return epath.Path(target)
