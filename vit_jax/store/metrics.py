"""The file of a run's numbers: metrics.jsonl, one JSON object per logged step."""

import json
import math
import sys
import time
from collections.abc import Mapping
from typing import Any

from etils import epath

from vit_jax.core.errors import reading, writing
from vit_jax.core.files import is_remote, parse_json
from vit_jax.store import workdir

METRICS_FILE = "metrics.jsonl"
FOLLOWED_FILE = "followed.jsonl"  # rows of vit-jax evaluate --follow, which has no other writer
LARGEST_STEP = 2**63 - 1

# First parts of names, "train/loss", that no evaluation has.
RESERVED = ("train", "speed", "input", "step", "gradients", "activations")


def evaluation(key: str) -> str | None:
    """The evaluation's name in a key, if it has one: test/accuracy -> test."""
    name, slash, _ = key.partition("/")
    return name if slash and name not in RESERVED else None


FLUSH_SECS = 30.0  # at gs://, between uploads that no checkpoint asks for
UPLOADS = 0.01  # the part of the time that these take


class MetricsFile:
    """Rows like {"step": 100, "train/loss": 0.31}; NaN and infinity, which JSON lacks, as null.

    What is at gs:// and the like cannot be appended to, but only uploaded as a whole. Rows are kept
    in memory there, and survive a kill from the next `flush` on. `write` flushes too, where that
    takes no more than UPLOADS of the time.
    """

    def __init__(self, path: epath.PathLike):
        self._path = epath.Path(path)
        self._rows: bytearray | None = None  # all of them, at gs:// once one was written
        self._is_flushed, self._next_flush = True, 0.0

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Appends a row, which then survives a kill. Raises UserError if it cannot."""
        row = {"step": step} | {
            name: float(v) if math.isfinite(v) else None for name, v in values.items()
        }
        line = json.dumps(row) + "\n"
        if is_remote(self._path):
            if self._rows is None:
                self._rows = bytearray(self._read())
            self._rows += line.encode()
            self._is_flushed = False
            if time.monotonic() >= self._next_flush:
                self.flush()
            return
        with writing("--workdir", self._path), self._path.open("a") as file:
            file.write(line)

    def flush(self) -> None:
        """Uploads the rows that are in memory alone. Raises UserError if it cannot."""
        if self._is_flushed:
            return
        begin = time.monotonic()
        with writing("--workdir", self._path):
            self._path.write_bytes(self._read())
        end = time.monotonic()
        self._is_flushed, self._next_flush = True, end + max(FLUSH_SECS, (end - begin) / UPLOADS)

    def rows(self) -> list[dict[str, Any]]:
        """All complete rows; a last line that a kill cut short is left out. [] without a file.

        NaN and infinities, which other programs may write, are null too. Raises UserError for any
        other line that is not a JSON object with a step and numbers, and for an unreadable file.
        """
        return [row for _, row in self._lines()]

    def truncate_after(self, step: int) -> None:
        """Removes rows after `step`, which a resumed run writes again, and a partial last one."""
        kept = b"".join(line for line, row in self._lines() if row["step"] <= step)
        if kept != self._read():
            workdir.save(self._path, kept)
            self._rows, self._is_flushed = None, True

    def _lines(self) -> list[tuple[bytes, dict[str, Any]]]:
        *whole, _ = [line + b"\n" for line in self._read().split(b"\n")]
        return [(line, self._parse(number, line)) for number, line in enumerate(whole, start=1)]

    def _read(self) -> bytes:
        if self._rows is not None:
            return bytes(self._rows)
        if not self._path.exists():
            return b""
        with reading("--workdir", self._path):
            return self._path.read_bytes()

    def _parse(self, number: int, line: bytes) -> dict[str, Any]:
        cure = "Move the file away: training does not need it."
        with reading(f"Line {number} of {self._path}, {line[:80]!r},", cure=cure):
            row = parse_json(line)
            if not _is_row(row):
                raise ValueError("not a row of metrics")
        finite = (v if v is None or abs(v) <= sys.float_info.max else None for v in row.values())
        from vit_jax.core.schema import renamed

        return renamed.metrics(dict(zip(row, finite, strict=True)))


def _is_row(row: Any) -> bool:
    """Returns whether it is an object with a step and numbers, or null in place of some."""
    step = row.get("step") if isinstance(row, dict) else None
    return (
        type(step) is int
        and 0 <= step <= LARGEST_STEP
        and all(v is None or type(v) in (int, float) for v in row.values())
    )
