"""Files that are there in full or not at all."""

from __future__ import annotations

from etils import epath


def write_text(path: epath.Path, text: str) -> None:
    """Replaces the file by `text` in one step; a killed process leaves the old one. OSError."""
    temporary = path.with_name(f".{path.name}.new")
    try:
        temporary.write_text(text)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
