"""From a name of weights to a file or folder of this machine."""

import os
from typing import NamedTuple

from etils import epath

from vit_jax.core import cloud
from vit_jax.weights.online import hub, remote_folder, storage
from vit_jax.weights.online.names import parse


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
        hub.check_installed(path)


def fetch(path: str | os.PathLike | epath.Path) -> Fetched:
    """The weights that a name means, fetched unless the cache has them; a path as it is.

    Raises:
      UserError: a mistake in a name, or it cannot be fetched.
    """
    name = parse(path)
    if name is None:
        folder = epath.Path(path).expanduser()
        return Fetched(remote_folder.copied(folder) if cloud.is_remote(path) else folder, None)
    called = os.fspath(path)
    if name.repository:
        snapshot = hub.fetch(name.repository, name.pin, name=called)
        return Fetched(epath.Path(snapshot.folder), name.pinned(snapshot.commit))
    assert name.url is not None
    kept = storage.fetch(name.url, name.pin, name=called)
    return Fetched(epath.Path(kept.path), name.pinned(kept.sha256))
