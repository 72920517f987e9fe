"""The second task: writes a shard of the data set from the places where its images lie."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from vit_jax.core.errors import UserError
from vit_jax.core.files import atomic
from vit_jax.data.sources import tfds_writer


class Stored(NamedTuple):
    """An example, and where its image lies.

    Attributes:
      sha256: of the image when it was checked; None: it lies in a copy, and nobody changes that.
    """

    name: str
    labels: tuple[int, ...]
    weights: tuple[float, ...]
    path: str
    offset: int
    nbytes: int
    sha256: bytes | None


@dataclasses.dataclass(frozen=True)
class ShardTask:
    """What a worker needs for it.

    Attributes:
      path: of the file to write.
      note: of the file that says that it is written, and what is in it.
      key: of all that it is made of; a note with another one does not count.
    """

    path: str
    note: str
    examples: tuple[Stored, ...]
    multi_label: bool
    weighted: bool

    @property
    def key(self) -> str:
        """Differs for other examples."""
        return hashlib.sha256(
            repr((self.examples, self.multi_label, self.weighted)).encode()
        ).hexdigest()


class ShardDone(NamedTuple):
    """What came of it.

    Attributes:
      nbytes: of its records.
      digest: of names, labels and images in their order; hexadecimal.
    """

    examples: int
    nbytes: int
    digest: str


def done(task: ShardTask) -> ShardDone | None:
    """What an earlier preparation noted; None: the shard has to be written."""
    try:
        noted = json.loads(Path(task.note).read_text())
        there = os.stat(task.path).st_size == noted["file_bytes"] and noted["key"] == task.key
        return ShardDone(**noted["done"]) if there else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def run_and_name(task: ShardTask) -> tuple[str, ShardDone]:
    """As `run`, with the path: results come in any order."""
    return task.path, run(task)


def run(task: ShardTask) -> ShardDone:
    """Writes the shard, then its note."""
    if found := done(task):
        return found
    digest, nbytes = hashlib.sha256(), 0

    def records() -> Iterator[bytes]:
        nonlocal nbytes
        with _Files() as files:
            for one in task.examples:
                image = files.read(one)
                digest.update(repr((one.name, one.labels, one.weights, len(image))).encode())
                digest.update(image)
                record = tfds_writer.example(
                    image,
                    one.labels,
                    one.name,
                    weights=one.weights,
                    multi_label=task.multi_label,
                    weighted=task.weighted,
                )
                nbytes += len(record)
                yield record

    path, note = Path(task.path), Path(task.note)
    with atomic.atomic_file(path) as written:
        tfds_writer.write_records(written, records())
        file_bytes = written.stat().st_size
    found = ShardDone(len(task.examples), nbytes, digest.hexdigest())
    text = json.dumps({"key": task.key, "file_bytes": file_bytes, "done": found._asdict()})
    atomic.write_text(note, text)
    return found


class _Files:
    """The files that images lie in; a few stay open."""

    MOST = 64

    def __init__(self) -> None:
        self._open: dict[str, IO[bytes]] = {}

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._open.values():
            file.close()

    def read(self, one: Stored) -> bytes:
        """UserError if the bytes are not there any more."""
        try:
            if one.path not in self._open:
                if len(self._open) >= self.MOST:
                    self._open.pop(next(iter(self._open))).close()
                # Closed by __exit__, or when too many are open.
                self._open[one.path] = open(one.path, "rb")  # noqa: SIM115
            file = self._open[one.path]
            file.seek(one.offset)
            data = file.read(one.nbytes)
        except OSError as error:
            raise UserError(f"{one.path} cannot be read: {error.strerror}.") from error
        if len(data) != one.nbytes or one.sha256 not in (None, hashlib.sha256(data).digest()):
            raise UserError(
                f"{one.path} has been changed since it was checked: {one.name}. Give another "
                "--version, or delete what was prepared so far."
            )
        return data
