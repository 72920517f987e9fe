"""metrics.jsonl: the numbers of a run, one JSON object per logged step."""

import json
import math
import sys
from collections.abc import Mapping
from typing import Any

from etils import epath

from vit_jax.core import cloud
from vit_jax.core.errors import UserError
from vit_jax.core.files import parse_json, write_text
from vit_jax.core.schema import renamed

LARGEST_STEP = 2**63 - 1

# First parts of names, "train/loss", that no evaluation has.
RESERVED = ("train", "speed", "input", "step", "gradients", "activations")


class MetricsFile:
    """Rows like {"step": 100, "train/loss": 0.31}; NaN and infinity, which JSON lacks, as null."""

    def __init__(self, path: epath.PathLike):
        self._path = epath.Path(path)
        self._is_remote = cloud.is_remote(path)
        self._uploaded: bytes | None = None  # what this process wrote last; None: nothing yet

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Appends a row, which then survives a kill. Raises UserError if it cannot.

        What is at gs:// and the like cannot be appended to: all rows are uploaded again, from
        memory, since to read them first would double the time.
        """
        row = {"step": step} | {
            name: float(v) if math.isfinite(v) else None for name, v in values.items()
        }
        line = json.dumps(row) + "\n"
        try:
            if self._is_remote:
                self._uploaded = (self._read() if self._uploaded is None else self._uploaded) + (
                    line.encode()
                )
                self._path.write_bytes(self._uploaded)
                return
            with self._path.open("a") as file:
                file.write(line)
        except OSError as error:
            raise self._unwritable(error) from error

    def rows(self) -> list[dict[str, Any]]:
        """All complete rows; a last line that a kill cut short is left out. [] without a file.

        NaN and infinities, which other programs may write, are null too. Raises UserError for any
        other line that is not a JSON object with a step and numbers, and for an unreadable file.
        """
        return [row for _, row in self._lines()]

    def truncate_after(self, step: int) -> None:
        """Removes rows after `step`, which a resumed run writes again, and a partial last one."""
        kept = b"".join(line for line, row in self._lines() if row["step"] <= step)
        self._uploaded = None
        if kept != self._read():
            try:
                write_text(self._path, kept.decode())
            except OSError as error:
                raise self._unwritable(error) from error

    def _lines(self) -> list[tuple[bytes, dict[str, Any]]]:
        """Complete lines and their values."""
        *whole, _ = [line + b"\n" for line in self._read().split(b"\n")]
        return [(line, self._parse(number, line)) for number, line in enumerate(whole, start=1)]

    def _read(self) -> bytes:
        if not self._path.exists():
            return b""
        try:
            return self._path.read_bytes()
        except OSError as error:
            advice = "Move it away, or give another --workdir."
            raise UserError(f"{self._path} cannot be read: {error.strerror}. {advice}") from error

    def _parse(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            row = parse_json(line)
            step = row["step"]
            if type(step) is not int or not 0 <= step <= LARGEST_STEP:
                raise ValueError("no step")
            numbers = {k: v if k == "step" else _number(v) for k, v in row.items()}
            return renamed.metrics(numbers)
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"Line {number} of {self._path} is not a row of metrics: {line[:80]!r}. Delete "
                "that line, or the file: training does not need it."
            ) from error

    def _unwritable(self, error: OSError) -> UserError:
        return UserError(
            f"{self._path} cannot be written: {error.strerror}. Make room and make it writable, or "
            "give another --workdir."
        )


def _number(value: Any) -> float | None:
    """A number unchanged, or null if it is not finite as a float. TypeError for anything else."""
    if value is None:
        return None
    if type(value) not in (int, float):
        raise TypeError("not a number")
    return value if abs(value) <= sys.float_info.max else None
