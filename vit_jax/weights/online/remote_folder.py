"""A folder of other projects' weights at gs://, copied: they are mapped into memory when read."""

import hashlib

import filelock
from etils import epath

from vit_jax.core import cloud
from vit_jax.core.files import atomic_file, cache_dir

_WEIGHTS, _ABOUT = ".safetensors", ".json"


def copied(folder: epath.Path) -> epath.Path:
    """The copy in the cache of a folder with safetensors; any other folder as it is.

    Where names, sizes and times of its files are as they were, they are not copied again.
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
