"""Files that are there in full or not at all."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path

_SUFFIX = ".part"


def temporary(path: Path) -> Path:
    """Beside it, and not taken by another process, also of another machine."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:16]}{_SUFFIX}")


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """The path to write to: it becomes `path`, or is deleted if that fails."""
    written = temporary(path)
    try:
        yield written
        written.replace(path)
    except BaseException:
        written.unlink(missing_ok=True)
        raise


def sweep(folder: Path) -> None:
    """Deletes what killed processes left in a folder."""
    for path in folder.glob(f".*{_SUFFIX}"):
        path.unlink(missing_ok=True)
