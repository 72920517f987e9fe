"""Files on local disks and behind URLs, gs:// above all; what may pass is tried again, ever slower.

What TensorFlow does not open, such as s3://, is opened by fsspec, if its package for that is there.
"""

import concurrent.futures
import errno
import glob as local_glob
import os
import time
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any, NamedTuple, TypeVar

import numpy as np

from vit_jax.core.errors import UserError, describe_error, reading
from vit_jax.core.files import atomic_file, is_remote
from vit_jax.core.waiting import waiting_for

T = TypeVar("T")

# What NumPy and zipfile raise for a file of numpy.savez that is not there, cut off, changed, or
# another kind of file.
NPZ_FAULTS = (
    OSError, ValueError, KeyError, TypeError, EOFError, RuntimeError, zipfile.BadZipFile,
    zlib.error,
)  # fmt: skip


RETRY_SECS = (1, 2, 4, 8, 16)  # before the second, third, ... attempt
_PASSING = frozenset({
    errno.EAGAIN, errno.EINTR, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ECONNRESET,
    errno.ECONNABORTED, errno.ECONNREFUSED, errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTUNREACH,
    errno.EPIPE,
})  # fmt: skip
_PASSING_CODES = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "ABORTED", "INTERNAL", "RESOURCE_EXHAUSTED")
_TENSORFLOWS = ("gs", "ram", "file", "hdfs", "viewfs")  # schemes that TensorFlow opens
_COPIED_BYTES = 8 * 2**20  # at once
_THREADS = 32  # threads that wait for the network


def retried(where: str, action: Callable[[], T]) -> T:
    """The result of `action`, tried again after errors that may pass.

    UserError that names `where` when it has failed too often; other errors as they are.
    """
    for wait_secs in (*RETRY_SECS, None):
        try:
            return action()
        except Exception as error:
            if not _may_pass(error):
                raise
            if wait_secs is None:
                rule = f"cannot be read {len(RETRY_SECS) + 1} times: {describe_error(error)}."
                cure = "When that disk or network is well, start the same command again."
                raise UserError(rule, field=where, cure=cure) from error
        with waiting_for(lambda: f"{where}, to try it again"):
            time.sleep(wait_secs)
    raise AssertionError("unreachable")


def _may_pass(error: Exception) -> bool:
    if isinstance(error, OSError):
        return isinstance(error, TimeoutError | ConnectionError) or error.errno in _PASSING
    if type(error).__module__.startswith("tensorflow"):
        from vit_jax.data.host_tf import tf

        passing = (
            tf.errors.UnavailableError, tf.errors.DeadlineExceededError, tf.errors.AbortedError,
            tf.errors.InternalError, tf.errors.ResourceExhaustedError, tf.errors.UnknownError,
        )  # fmt: skip
        return isinstance(error, passing)
    # How array_record reports errors of Google's file systems.
    return isinstance(error, RuntimeError) and str(error).startswith(_PASSING_CODES)


class Entry(NamedTuple):
    """A file or subfolder of a folder; or neither: a pipe, or a link to nothing."""

    name: str
    is_folder: bool
    size_bytes: int
    is_file: bool
    is_link: bool = False


def list_folder(folder: str | Path) -> list[Entry]:
    """Entries by name. FileNotFoundError or NotADirectoryError if it is not a folder."""
    if is_remote(folder):
        names = [
            name.rstrip("/") for name in _remote(folder, lambda gfile: gfile.listdir(str(folder)))
        ]
        paths = [join(folder, name) for name in names]
        with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
            stats = pool.map(lambda path: _remote(path, lambda gfile: gfile.stat(path)), paths)
            return sorted(
                Entry(name, stat.is_directory, stat.length, not stat.is_directory)
                for name, stat in zip(names, stats, strict=True)
            )
    with os.scandir(folder) as entries:
        return sorted(map(_entry, entries))


def _entry(entry: os.DirEntry[str]) -> Entry:
    try:
        stat = os.stat(entry.path)  # the methods of `entry` raise where links form a cycle
    except OSError:
        return Entry(entry.name, False, 0, is_file=False, is_link=entry.is_symlink())
    kinds = S_ISDIR(stat.st_mode), S_ISREG(stat.st_mode)
    return Entry(entry.name, kinds[0], stat.st_size, kinds[1], entry.is_symlink())


def subfolders(folder: str | Path) -> list[str]:
    """Sorted names of visible subfolders."""
    return [name for name in sorted(_names(folder, folders=True)) if not name.startswith(".")]


def file_names(folder: str | Path) -> list[str]:
    """Names of the files in a folder."""
    return _names(folder, folders=False)


def _names(folder: str | Path, *, folders: bool) -> list[str]:
    """Cheaper on a local disk than `list_folder`: no call of `stat` for each."""
    if is_remote(folder):
        return [e.name for e in list_folder(folder) if (e.is_folder if folders else e.is_file)]
    of_entry = os.DirEntry.is_dir if folders else os.DirEntry.is_file
    of_path = os.path.isdir if folders else os.path.isfile
    with os.scandir(folder) as entries:  # whose methods raise where links form a cycle
        return [e.name for e in entries if (of_path(e.path) if e.is_symlink() else of_entry(e))]


def is_folder(path: str | Path) -> bool:
    """Returns whether the path is a folder; False if nothing exists there."""
    if is_remote(path):
        try:  # not isdir, which says no to a folder that may not be read
            return _remote(path, lambda gfile: gfile.stat(str(path)).is_directory)
        except FileNotFoundError:
            return False
    return path != "" and Path(path).is_dir()


def existing_folder(path: str | None, field: str, *, cure: str) -> str:
    """The path of a folder that a field of the config names. UserError if it is not one."""
    folder = expanded(path or "")
    if path is None or not is_folder(folder):
        raise UserError("is not a folder.", field=field, value=path, cure=cure)
    return folder


def glob(folder: str, pattern: str) -> list[str]:
    """Paths below a folder; in the pattern "*" matches any name."""
    if is_remote(folder):
        return sorted(_remote(folder, lambda gfile: gfile.glob(join(folder, pattern))))
    return sorted(local_glob.glob(join(local_glob.escape(folder), pattern)))


def sizes(paths: Sequence[str | Path]) -> list[int | None]:
    """Size of each file in bytes; None if it is not there."""
    if any(map(is_remote, paths)):
        with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
            return list(pool.map(_size, paths))
    return [_size(path) for path in paths]


def _size(path: str | Path) -> int | None:
    try:
        if is_remote(path):
            return _remote(path, lambda gfile: gfile.stat(str(path)).length)
        return Path(path).stat().st_size if Path(path).is_file() else None
    except FileNotFoundError:
        return None


def stamp(paths: Sequence[str | Path]) -> str:
    """Sizes of local files, and when content and inode last changed; of remote ones nothing.

    A change of content that keeps size and modification time, as copies may, changes the inode.
    """
    stats = [Path(path).stat() for path in paths if not is_remote(path)]
    return " ".join(f"{stat.st_size}@{stat.st_mtime_ns}/{stat.st_ctime_ns}" for stat in stats)


def read(path: str | Path) -> bytes:
    """All of a file. OSError if it cannot be read, FileNotFoundError if there is none."""
    if is_remote(path):
        return _remote(path, lambda gfile: gfile.GFile(str(path), "rb").read())
    return retried(str(path), Path(path).read_bytes)


def write_npz(path: Path, **arrays: Any) -> None:
    """Writes a local file of numpy.savez at once or not at all. OSError if it cannot."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as part, part.open("wb") as file:
        np.savez(file, **arrays)


def copy(path: str, target: Path, on_bytes: Callable[[int], None]) -> None:
    """Copies to a local file, which is overwritten; calls `on_bytes` with the size of each part.

    OSError if the target cannot be written; if `path` cannot be read, errors as in `read`.
    """

    def copied(open_file: Callable[..., Any]) -> None:
        with open_file(path, "rb") as source, target.open("wb") as file:
            while part := source.read(_COPIED_BYTES):
                file.write(part)
                on_bytes(len(part))

    if is_remote(path):
        _remote(path, lambda gfile: copied(gfile.GFile))
    else:
        retried(path, lambda: copied(open))


def _remote(path: str | Path, action: Callable[[Any], T]) -> T:
    """`action` with TensorFlow's file systems, or fsspec's by the same methods; retried."""
    where = str(path)
    absent: type[Exception] = FileNotFoundError
    fault: type[Exception] = OSError
    if where.partition("://")[0] in _TENSORFLOWS:
        from vit_jax.data.host_tf import tf

        system, absent, fault = tf.io.gfile, tf.errors.NotFoundError, tf.errors.OpError
    else:
        with reading(where):  # ValueError: nobody knows the scheme
            system = _Fsspec(where)
    try:
        return retried(where, lambda: action(system))
    except absent as error:
        raise FileNotFoundError(errno.ENOENT, "there is no such file", where) from error
    except fault:
        with reading(where):
            raise


class _Stat(NamedTuple):
    length: int
    is_directory: bool


class _Fsspec:
    """A file system of fsspec with those methods of tf.io.gfile that are called here."""

    def __init__(self, where: str):
        import fsspec

        self._scheme = where.partition("://")[0]
        self._system = fsspec.filesystem(self._scheme)

    def listdir(self, folder: str) -> list[str]:
        names = self._system.ls(folder, detail=False)
        # Some list a marker of the folder itself.
        own = folder.partition("://")[2].strip("/")
        return [name.rstrip("/").rpartition("/")[2] for name in names if name.strip("/") != own]

    def stat(self, path: str) -> _Stat:
        info = self._system.info(path)
        return _Stat(info["size"] or 0, info["type"] == "directory")

    def glob(self, pattern: str) -> list[str]:
        return [f"{self._scheme}://{path.lstrip('/')}" for path in self._system.glob(pattern)]

    def GFile(self, path: str, mode: str) -> Any:
        return self._system.open(path, mode)


def expanded(path: str) -> str:
    """The path with "~" replaced by the home folder; "" stays, which to Path is "."."""
    return path.rstrip("/") if is_remote(path) or not path else str(Path(path).expanduser())


def join(folder: str | Path, *names: str) -> str:
    """The path of names below a folder, which may be remote."""
    return "/".join([str(folder).rstrip("/"), *names])
