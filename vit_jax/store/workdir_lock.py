"""A lock for one run at a time in a work directory: two would delete each other's files.

The lock belongs to the open file, so the kernel releases it however the process ends. The file
stays, and names the process that holds the lock or held it last.

At gs:// and where there are no locks the run that started last goes on, and the one before it ends
at its next save (workdir.check_owner).
"""

import contextlib
import os
import socket
from collections.abc import Iterator

import jax
from etils import epath

from vit_jax.core.errors import UserError, writing
from vit_jax.core.files import is_remote
from vit_jax.store import workdir

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]  # a system without it, such as Windows

LOCK_FILE = ".lock"


@contextlib.contextmanager
def lock(path: epath.PathLike) -> Iterator[None]:
    """Keeps other runs out of the work directory, which is created if needed.

    Nothing is locked where locks are unavailable: on Windows, at gs://, on file systems without
    locks. On several hosts process 0 holds it for all.
    """
    with contextlib.nullcontext() if jax.process_index() else lock_for_process(epath.Path(path)):
        yield


@contextlib.contextmanager
def lock_for_process(folder: epath.Path) -> Iterator[None]:
    """A `lock` for a single process, without asking JAX for its devices."""
    if str(folder).startswith("gs://"):
        _try_bucket(folder)
    if fcntl is None or is_remote(folder):
        yield
        return
    workdir.make(folder)
    file = try_lock(folder, LOCK_FILE)
    if file is None:
        holder = (folder / LOCK_FILE).read_bytes()[:1000].decode(errors="replace").strip()
        advice = "wait for it, or give another --workdir."
        raise UserError(f"Another run ({holder}) is writing to {folder}: {advice}")
    try:
        with writing("--workdir", folder):
            os.truncate(file, 0)
            os.write(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        yield
    finally:
        os.close(file)


def _try_bucket(folder: epath.Path) -> None:
    """Raises UserError if nothing can be written there; TensorFlow would try for minutes."""
    import tensorstore  # as checkpoints are written; 0.2 s

    with writing("--workdir", folder):
        store = tensorstore.KvStore.open(f"{folder}/").result()
        for content in (b"", None):  # None: deletes it
            store.write(".writable", content).result()


def try_lock(folder: epath.Path, name: str, *, field: str = "--workdir") -> int | None:
    """Locks a file of the folder until the returned descriptor is closed; None: another holds it.

    UserError if the file cannot be written; where locks are unavailable it is only opened.
    """
    with writing(field, folder):
        file = os.open(folder / name, os.O_RDWR | os.O_CREAT, mode=0o666)
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    except OSError:  # a file system without locks
        pass
    return file


def is_locked(folder: epath.Path, name: str = LOCK_FILE) -> bool:
    """Returns whether a process holds a lock of the folder; False where locks are unavailable."""
    if fcntl is None or is_remote(folder) or not (folder / name).exists():
        return False
    with (folder / name).open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # a file system without locks
            pass
    return False
