"""Files and folders that appear in full or not at all: written under another name, then renamed.

Unfinished ones have a name that begins with a dot, so that a killed process leaves nothing that
could be taken for the result.
"""

import contextlib
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from etils import epath

_Path = TypeVar("_Path", Path, epath.Path)

_SUFFIX = ".part"


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


def write_text(path: _Path, text: str) -> None:
    """Replaces the file atomically; a killed process leaves the old one. Raises OSError."""
    with atomic_file(path) as temporary:
        temporary.write_text(text)


def delete_leftovers(folder: Path) -> None:
    """Deletes the temporary files of killed processes; no process may be writing to the folder."""
    for path in folder.glob(f".*{_SUFFIX}"):
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Path of an empty temporary folder, which becomes `path` afterwards; any error deletes it.

    One process at a time: the name is fixed, so that the next start deletes a killed one's rest.
    """
    temporary = path.with_name(f".{path.name}.new")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        yield temporary
        temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
