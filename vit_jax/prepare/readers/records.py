"""Lists of images with their labels, as JSON lines or Parquet; JFT has such.

An entry has the fields
- `image`: a path, relative to the folder of the list, or to --images_root; or the file's bytes (in
  JSON as base64) as `{"bytes": ...}`, as Hugging Face's data sets have them;
- `labels`, or what --label_field says: classes, as numbers or names;
- `weights`: of the labels, if they have any;
- `id`: unique in the set; without it, the path or the place in the list.
"""

from __future__ import annotations

import base64
import binascii
import errno
import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from vit_jax.core.errors import UserError
from vit_jax.prepare.collection import Collection, Request
from vit_jax.prepare.entry import Member, Part, Place
from vit_jax.prepare.readers import parquet
from vit_jax.prepare.readers.labels import BadLabelError, Reading, classes, weights
from vit_jax.prepare.readers.source_files import SourceFile, source_files
from vit_jax.prepare.readers.tars import MAX_MEMBER_BYTES

SUFFIXES = (".jsonl", ".ndjson", ".json", ".parquet")
MAX_LINE_BYTES = 64 * 2**20
MAX_ID_LENGTH = 4096
LEAST_PART_BYTES = 2**20
LINES_A_PART = 1000  # about
_NO_SUCH_NAME = (errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL)


def collection(request: Request) -> Collection:
    """UserError if there are no lists, the classes are not given, or Parquet lacks columns."""
    several = request.multi_label is not False
    field = request.label_field or ("labels" if several else "label")
    of_set = classes(request)
    parts: list[Part] = []
    images_root = _images_root(request)
    for file in source_files(request.source, SUFFIXES):
        root = str(images_root or file.path.parent)
        reading = Reading(of_set, field, several, root)
        is_parquet = file.path.suffix == ".parquet"
        parts += (parquet.parts if is_parquet else _parts)(file, reading)
    if not parts:
        raise UserError(f"--source={request.source}: the files list no images.")
    return Collection(
        name="records",
        description="Images of lists.",
        class_names=of_set.names,
        parts=parts,
        multi_label=several,
    )


def _images_root(request: Request) -> Path | None:
    """UserError if there is no such folder: each image would be missing."""
    if request.images_root is None:
        return None
    root = Path(request.images_root).expanduser().absolute()
    if not request.images_root or not root.is_dir():
        raise UserError(
            f"--images_root={request.images_root} is not a folder. Paths in the lists are relative "
            "to it; without it, to the folder of their list."
        )
    return root


def _parts(file: SourceFile, reading: Reading) -> list[Part]:
    """Pieces with about as many lines."""
    with open(file.path, "rb") as opened:
        if opened.read(2) == b"\x1f\x8b":
            raise UserError(f"{file.path} is compressed: decompress it (gzip -d {file.path}).")
        opened.seek(0)
        step = max(LINES_A_PART * len(opened.readline(MAX_LINE_BYTES)), LEAST_PART_BYTES)
    size = file.path.stat().st_size
    return [
        Part(
            name=f"{file.name}@{start}",
            reader="json_lines",
            path=str(file.path),
            offset=start,
            nbytes=min(step, size - start),
            split=file.split,
            reading=reading,
        )
        for start in range(0, size, step)
    ]


def json_lines(part: Part) -> Iterator[Member]:
    """The images of the lines that begin in the part."""
    list_name = part.name.rpartition("@")[0]
    try:
        for offset, line in _lines(part):
            name, place = f"{list_name}@{offset}", Place(part.path, offset, len(line or b""))
            try:
                entry = json.loads(line) if line is not None else None
            except (ValueError, RecursionError):
                entry = None
            yield member(entry, part, name, place)
    except OSError as error:
        raise UserError(f"{part.path} cannot be read: {error.strerror}.") from error


def _lines(part: Part) -> Iterator[tuple[int, bytes | None]]:
    """(offset, line), None for a line that is too long; a line may go on behind the part."""
    assert part.nbytes is not None
    stop = part.offset + part.nbytes
    with open(part.path, "rb") as file:
        if part.offset:
            file.seek(part.offset - 1)
            _skip_line(file, stop)
        while (start := file.tell()) < stop and (line := file.readline(MAX_LINE_BYTES)):
            if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
                _skip_line(file, stop)
                yield start, None
            elif line.strip():
                yield start, line


def _skip_line(file: IO[bytes], stop: int) -> None:
    """To the next line, or to `stop` where this one has no end before."""
    while file.tell() < stop and not file.readline(2**20).endswith(b"\n"):
        pass


def parquet_rows(part: Part) -> Iterator[Member]:
    """The images of a group of rows."""
    for name, entry in parquet.entries(part):
        yield member(entry, part, name, Place(part.path, 0, 0))


def member(entry: object, part: Part, name: str, place: Place) -> Member:
    """The image of an entry. UserError if the disk fails."""
    reading = part.reading
    assert reading is not None
    image = entry.get("image") if isinstance(entry, Mapping) else None
    if isinstance(image, Mapping):
        image = image.get("path") if image.get("bytes") is None else _bytes(image["bytes"])
    if not isinstance(entry, Mapping) or not isinstance(image, str | bytes):
        return Member(name, None, place, fault="bad_entry")
    given = entry.get("id")
    if given is None:
        given = image if isinstance(image, str) else name
    if type(given) not in (str, int) or not 0 < len(str(given)) <= MAX_ID_LENGTH:
        return Member(name, None, place, fault="bad_entry")
    name = str(given)
    try:
        labels = reading.classes.labels(entry.get(reading.label_field), several=reading.several)
        of_labels = weights(entry.get("weights"), labels)
    except BadLabelError:
        return Member(name, None, place, fault="bad_label")
    if isinstance(image, bytes):
        return Member(name, image, None, labels, of_labels)
    try:
        data, place = _file(image, reading.images_root)
    except _RefusedError as refused:
        return Member(name, None, place, fault=refused.args[0])
    return Member(name, data, place, labels, of_labels)


def _bytes(value: object) -> bytes | None:
    """Of Parquet as they are, of JSON in base64; None if they are neither."""
    if isinstance(value, bytes):
        return value
    try:
        return base64.b64decode(value, validate=True) if isinstance(value, str) else None
    except (binascii.Error, ValueError):
        return None


class _RefusedError(Exception):
    """A path that is not read; its argument is the fault."""


def _file(path: str, root: str) -> tuple[bytes, Place]:
    """The bytes of a file, and where they are. Raises _RefusedError, OSError."""
    try:
        real = os.path.realpath(os.path.join(root, path))
        root = os.path.realpath(root)
        if os.path.commonpath([real, root]) != root:
            raise _RefusedError("outside")
        found = os.stat(real)
        if not stat.S_ISREG(found.st_mode):  # a pipe would not end
            raise _RefusedError("no_file")
        if found.st_size > MAX_MEMBER_BYTES:
            raise _RefusedError("too_large")
        data = Path(real).read_bytes()
    except (FileNotFoundError, NotADirectoryError, PermissionError, ValueError) as error:
        raise _RefusedError("missing") from error  # ValueError: of a zero in its name
    except OSError as error:
        if error.errno in _NO_SUCH_NAME:
            raise _RefusedError("missing") from error
        raise
    return data, Place(real, 0, len(data))
