"""A lock for one run at a time in a work directory: two would delete each other's files.

The lock belongs to the open file, so the kernel releases it however the process ends. The file
stays, and names the process that holds the lock or held it last.
"""

import contextlib
import os
import socket
from collections.abc import Iterator

import jax
from etils import epath

from vit_jax.core.errors import UserError
from vit_jax.store import workdir

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]  # a system without it, such as Windows

LOCK_FILE = ".lock"
MAX_HOLDER_BYTES = 1000


@contextlib.contextmanager
def lock(path: epath.PathLike) -> Iterator[None]:
    """Keeps other runs out of the work directory, which is created if needed.

    Raises UserError if another run is in it. Nothing is locked where locks are unavailable: on
    gs://, on Windows, on file systems without locks. On several hosts process 0 holds it for all.
    """
    folder = epath.Path(path)
    if jax.process_index() > 0:
        yield
        return
    with alone_in(folder):
        yield


@contextlib.contextmanager
def alone_in(folder: epath.Path) -> Iterator[None]:
    """A `lock` for a single process, without asking JAX for its devices."""
    if fcntl is None or "://" in str(folder):
        yield
        return
    workdir.make(folder)
    try:
        file = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, mode=0o666)
    except OSError as error:
        raise workdir.unwritable(folder, error) from error
    try:
        _take(file, folder)
        yield
    finally:
        os.close(file)


def is_locked(folder: epath.Path, name: str = LOCK_FILE) -> bool:
    """Whether a process holds a lock of the folder; False where locks are unavailable."""
    if fcntl is None or "://" in str(folder) or not (folder / name).exists():
        return False
    with (folder / name).open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # a file system without locks
            pass
    return False


def _take(file: int, folder: epath.Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(file, MAX_HOLDER_BYTES, 0).decode().strip()
        raise UserError(
            f"Another run ({holder}) is writing to {folder}: wait for it, or give another "
            "--workdir."
        ) from error
    except OSError:  # a file system without locks
        return
    try:
        os.truncate(file, 0)
        os.write(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
    except OSError as error:
        raise workdir.unwritable(folder, error) from error
