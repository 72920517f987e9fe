"""Files: paths here and at gs://, files written in full or not at all, JSON, the cache folder.

What is written appears by a renaming. Unfinished files and folders have a name that begins with a
dot, so that a killed process leaves nothing that could be taken for the result.
"""

import contextlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from etils import epath

_Path = TypeVar("_Path", Path, epath.Path)

_SUFFIX = ".part"
MAX_NAME_BYTES = 255  # on Linux, macOS and Windows


def is_remote(path: object) -> bool:
    """Returns whether the path is a URL such as "gs://bucket/folder"."""
    return "://" in str(path)


def is_folder(path: epath.Path) -> bool:
    """Returns whether the path is a folder; raises the error of a storage that cannot be reached.

    `is_dir` would return False at gs://, and a run would start from scratch.
    """
    if not is_remote(path):
        return path.is_dir()
    try:
        return bool(path.stat().is_directory)
    except FileNotFoundError:
        return False


def expand_home(path: str | os.PathLike) -> str:
    """The path with "~" expanded on this machine. Raises RuntimeError if no home folder is known.

    os.path and etils would leave it, and a folder "~" would appear in the current one.
    """
    return os.fspath(path if is_remote(path) else Path(path).expanduser())


@contextlib.contextmanager
def atomic_file(path: _Path) -> Iterator[_Path]:
    """Path of a temporary file to write, which replaces `path` afterwards; any error deletes it.

    The name is unique, since processes on other machines may write the same file.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:16]}{_SUFFIX}")
    try:
        yield temporary
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_file(path: _Path, content: str | bytes, *, private: bool = False) -> None:
    """Replaces the file atomically; a killed process leaves the old one. Raises OSError.

    private: only its owner may read it; at gs:// and the like that is the bucket's affair.
    """
    with atomic_file(path) as temporary:
        if private and "://" not in str(path):
            os.close(os.open(temporary, os.O_CREAT | os.O_WRONLY, 0o600))
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def is_name(text: str) -> bool:
    """Returns whether it is one part of a path that every file system takes as a name."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:  # half of a character
        return False
    return text not in ("", ".", "..") and size <= MAX_NAME_BYTES and not set(text) & set("/\\\0")


def delete_leftovers(folder: Path) -> None:
    """Deletes the temporary files of killed processes; no process may be writing to the folder."""
    for path in folder.glob(f".*{_SUFFIX}"):
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Path of an empty temporary folder, which becomes `path` afterwards; any error deletes it.

    The name is unique: of several processes the first to finish writes all of `path`, and the
    others get an OSError.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:16]}.new")
    try:
        temporary.mkdir(parents=True)
        yield temporary
        temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def cache_dir() -> Path:
    """The user's cache folder, not a shared one: programs stored in it are executed."""
    if own := os.environ.get("VIT_JAX_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "vit_jax"


MAX_DEPTH = 64  # training writes fewer than ten levels


def parse_json(data: bytes) -> Any:
    """The value of a run's JSON; any fault (not UTF-8, nested beyond MAX_DEPTH) is a ValueError.

    NaN and infinities, which JSON lacks, are read as in Python.
    """
    try:
        value = json.loads(data.decode())
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if _is_deeper(value, MAX_DEPTH):
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")
    return value


def _is_deeper(value: Any, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    inside = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_is_deeper(x, levels - 1) for x in inside)
