"""One run at a time in a work directory: two would delete each other's checkpoints and rows.

The lock belongs to the open file, so the kernel gives it back however the process ends. The file
stays, and says who holds the lock or held it last.
"""

from __future__ import annotations

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
    """Keeps other runs out of the work directory, which is made if need be.

    Raises UserError if another run is in it. Nothing is locked where nothing can be: on gs://, on
    Windows, on file systems without locks. On several hosts process 0 holds the lock for all.
    """
    folder = epath.Path(path)
    if fcntl is None or "://" in str(folder) or jax.process_index() > 0:
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


def _take(file: int, folder: epath.Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(file, MAX_HOLDER_BYTES, 0).decode().strip()
        raise UserError(
            f"Another run ({holder}) is writing to {folder}: wait for it, or give another "
            "--workdir."
        ) from error
    except OSError:  # this file system knows no locks
        return
    try:
        os.truncate(file, 0)
        os.write(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
    except OSError as error:
        raise workdir.unwritable(folder, error) from error
