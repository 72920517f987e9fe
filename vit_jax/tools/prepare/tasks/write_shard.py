"""The second task: writes a shard of the data set from the locations of its images."""

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from vit_jax.core.errors import UserError
from vit_jax.core.files import atomic_file, write_text
from vit_jax.data.sources import tfds_writer
from vit_jax.tools.prepare.catalogue import ImageRow
from vit_jax.tools.prepare.faults import CONVERT

MOST_OPEN_FILES = 64


@dataclasses.dataclass(frozen=True)
class ShardTask:
    """A shard to write."""

    path: str
    note: str  # path of a file that records that the shard is written, and its contents
    rows: tuple[ImageRow, ...]
    multi_label: bool
    weighted: bool

    @property
    def key(self) -> str:
        """A hash of all inputs; a note with another one does not count."""
        inputs = repr((self.rows, self.multi_label, self.weighted))
        return hashlib.sha256(inputs.encode()).hexdigest()


class WrittenShard(NamedTuple):
    """The contents of a shard."""

    examples: int
    nbytes: int  # of its records
    digest: str  # of names, labels and images in their order; hexadecimal


def already_written(task: ShardTask) -> WrittenShard | None:
    """The note of an earlier preparation; None: the shard has to be written."""
    try:
        note = json.loads(Path(task.note).read_text())
        is_same = os.stat(task.path).st_size == note["file_bytes"] and note["key"] == task.key
        return WrittenShard(**note["done"]) if is_same else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def run_and_name(task: ShardTask) -> tuple[str, WrittenShard]:
    """`run`, with the shard's path, since results come in any order."""
    return task.path, run(task)


def run(task: ShardTask) -> WrittenShard:
    """Writes the shard, then its note."""
    if earlier := already_written(task):
        return earlier
    digest, nbytes = hashlib.sha256(), 0

    def records() -> Iterator[bytes]:
        nonlocal nbytes
        with contextlib.ExitStack() as stack:
            files: dict[str, IO[bytes]] = {}
            for row in task.rows:
                image = _image(row, files, stack)
                labels = row.labels or ()
                digest.update(repr((row.name, labels, row.weights, len(image))).encode())
                digest.update(image)
                record = tfds_writer.example(
                    image,
                    labels,
                    row.name,
                    weights=row.weights,
                    multi_label=task.multi_label,
                    weighted=task.weighted,
                )
                nbytes += len(record)
                yield record

    with atomic_file(Path(task.path)) as temporary:
        tfds_writer.write_records(temporary, records())
        file_bytes = temporary.stat().st_size
    written = WrittenShard(len(task.rows), nbytes, digest.hexdigest())
    note = json.dumps({"key": task.key, "file_bytes": file_bytes, "done": written._asdict()})
    write_text(Path(task.note), note)
    return written


def _image(row: ImageRow, files: dict[str, IO[bytes]], stack: contextlib.ExitStack) -> bytes:
    """The bytes at a row's location, of a few `files` that stay open. UserError if they changed."""
    try:
        if row.path not in files:
            if len(files) >= MOST_OPEN_FILES:
                files.pop(next(iter(files))).close()
            files[row.path] = stack.enter_context(open(row.path, "rb"))  # noqa: SIM115
        files[row.path].seek(row.offset)
        data = files[row.path].read(row.nbytes)
    except OSError as error:
        raise UserError(f"{row.path} cannot be read: {error.strerror}.") from error
    # The hash of a converted image is that of its original; nobody else changes the copy.
    is_same = row.action == CONVERT or hashlib.sha256(data).digest() == row.sha256
    if len(data) != row.nbytes or not is_same:
        raise UserError(
            f"{row.path} has been changed since it was checked: {row.name}. Give another "
            "--version, or delete what was prepared so far."
        )
    return data
