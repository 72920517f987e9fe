"""Lists of images with their labels, as JSON lines or Parquet, such as those of JFT, or as CSV.

tables.py reads CSV and TSV. An entry of the others has the fields
- `image`: a path, relative to the folder of the list or to --images_root; or the file's bytes (in
  JSON as base64) as `{"bytes": ...}`, as in Hugging Face's data sets;
- `labels`, or the name in --label_field: classes, as numbers or names;
- `weights`: of the labels, optional;
- `id`: unique in the set; without it, the path or the position in the list.
"""

import base64
import binascii
import errno
import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from vit_jax.core.errors import UserError
from vit_jax.tools.prepare.catalogue import ImageRow, Location, RowAndBytes
from vit_jax.tools.prepare.collection import Collection, CollectionRequest, Part
from vit_jax.tools.prepare.faults import FAULTS
from vit_jax.tools.prepare.readers import tables
from vit_jax.tools.prepare.readers.labels import (
    BadLabelError,
    Classes,
    Reading,
    classes,
    classes_of_lists,
    names_in_parquet,
    weights,
)
from vit_jax.tools.prepare.readers.source_files import SourceFile, source_files
from vit_jax.tools.prepare.readers.tars import MAX_MEMBER_BYTES

SUFFIXES = (".jsonl", ".ndjson", ".json", ".parquet", *tables.SUFFIXES)
MAX_LINE_BYTES = 64 * 2**20
MAX_ID_LENGTH = 4096
LEAST_PART_BYTES = 2**20
LINES_PER_PART = 1000  # about
ROWS_AT_ONCE = 16  # of Parquet
_PARQUET_ERRORS = (OSError, pa.ArrowException, MemoryError)
_NO_SUCH_NAME = (errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL)


def collection(request: CollectionRequest) -> Collection:
    """Images of all lists. UserError: no lists, no classes, or Parquet that lacks columns."""
    files = source_files(request.source, SUFFIXES)
    of_tables = [file for file in files if file.path.suffix.lower() in tables.SUFFIXES]
    if of_tables:
        return _of_tables(request, files, of_tables)
    if request.image_field is not None:
        raise UserError("--image_field is for CSV and TSV: other lists have `image`.")
    several = request.multi_label is not False
    field = request.label_field or ("labels" if several else "label")
    in_parquet = [file.path for file in files if file.path.suffix.lower() == ".parquet"]
    of_set = classes_of_lists(request, field, in_parquet)
    parts: list[Part] = []
    images_root = _images_root(request)
    for file in files:
        root = str(images_root or file.path.parent)
        reading = Reading(of_set, field, several, root)
        is_parquet = file.path.suffix.lower() == ".parquet"
        parts += (_parts_of_parquet if is_parquet else _parts_of_json)(file, reading)
    if not parts:
        raise UserError(f"--source={request.source}: the files list no images.")
    return Collection(
        name="records",
        description="Images of lists.",
        class_names=of_set.names,
        parts=parts,
        multi_label=several,
    )


def _images_root(request: CollectionRequest) -> Path | None:
    """The folder of --images_root; None: that of each list."""
    if request.images_root is None:
        return None
    images_root = Path(request.images_root).expanduser().absolute()
    if not request.images_root or not images_root.is_dir():
        raise UserError(
            f"--images_root={request.images_root} is not a folder. Paths in the lists are "
            "relative to it; without it, to the folder of their list."
        )
    return images_root


def _of_tables(
    request: CollectionRequest, files: Sequence[SourceFile], of_tables: Sequence[SourceFile]
) -> Collection:
    """Images of CSV and TSV. UserError: other lists beside them, lists of labels, no images."""
    if len(files) > len(of_tables):
        other = next(file.path for file in files if file not in of_tables)
        raise UserError(
            f"--source={request.source} has tables ({of_tables[0].path}) and other lists ({other}):"
            " name those of one kind, as --source=labels.csv."
        )
    if request.multi_label:
        raise UserError(
            "--multi_label: a row of a CSV has one label. List several as JSON lines or Parquet."
        )
    read = [tables.read(file, request.image_field, request.label_field) for file in of_tables]
    given = request.classes is not None or request.num_classes is not None
    known = classes(request) if given else tables.inferred_classes(read)
    names = known.names if isinstance(known, Classes) else known
    root = _images_root(request)
    parts = [
        part for one in read for part in tables.parts(one, known, str(root or one.file.path.parent))
    ]
    if not parts:
        raise UserError(f"--source={request.source}: the files list no images.")
    notes = [one.note for one in read]
    if not given:
        more = " ..." if len(names) > 5 else ""
        notes.append(f"The classes are the labels, sorted: {', '.join(names[:5])}{more}.")
    return Collection(
        name="records",
        description="Images of lists.",
        class_names=names,
        parts=sorted(parts, key=lambda part: part.reader in FAULTS),  # what is left out comes last
        notes=notes,
    )


def _parts_of_json(file: SourceFile, reading: Reading) -> list[Part]:
    """Pieces with about LINES_PER_PART lines."""
    with open(file.path, "rb") as opened:
        if opened.read(2) == b"\x1f\x8b":
            raise UserError(f"{file.path} is compressed: decompress it (gzip -d {file.path}).")
        opened.seek(0)
        step = max(LINES_PER_PART * len(opened.readline(MAX_LINE_BYTES)), LEAST_PART_BYTES)
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


def _parts_of_parquet(file: SourceFile, reading: Reading) -> list[Part]:
    """A part for each row group. UserError if the file is damaged or lacks columns."""
    path = str(file.path)
    try:
        with pq.ParquetFile(path) as opened:
            names, groups = opened.schema_arrow.names, opened.num_row_groups
    except _PARQUET_ERRORS as error:
        raise _damaged_parquet(path, error) from error
    for name in ("image", reading.label_field):
        if name not in names:
            raise UserError(
                f"{path} has no column {name!r}; it has {', '.join(map(repr, names[:20]))}. The "
                "columns are image, labels (or --label_field) and, optionally, weights and id."
            )
    return [
        Part(f"{file.name}@{k}", "parquet", path, offset=k, split=file.split, reading=reading)
        for k in range(groups)
    ]


def json_lines(part: Part) -> Iterator[RowAndBytes]:
    """The images of the lines that begin in the part."""
    list_name = part.name.rpartition("@")[0]
    try:
        for offset, line in _lines(part):
            row = ImageRow(f"{list_name}@{offset}", part.path, offset, len(line or b""))
            try:
                entry = json.loads(line) if line is not None else None
            except (ValueError, RecursionError):
                entry = None
            yield _image(entry, part, row)
    except OSError as error:
        raise UserError(f"{part.path} cannot be read: {error.strerror}.") from error


def _lines(part: Part) -> Iterator[tuple[int, bytes | None]]:
    """(offset, line), None for a line that is too long; a line may end behind the part."""
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
    """Moves to the next line, or to `stop` if this line does not end before."""
    while file.tell() < stop and not file.readline(2**20).endswith(b"\n"):
        pass


def parquet_rows(part: Part) -> Iterator[RowAndBytes]:
    """The images of a row group; a row that is not text has a bad entry."""
    assert part.reading is not None
    field = part.reading.label_field
    wanted = ("image", field, "weights", "id")
    names = names_in_parquet(part.path, field)
    number = 0
    try:
        with pq.ParquetFile(part.path) as file:
            columns = [name for name in wanted if name in file.schema_arrow.names]
            for batch in file.iter_batches(ROWS_AT_ONCE, row_groups=[part.offset], columns=columns):
                for k in range(len(batch)):
                    try:
                        entry = batch.slice(k, 1).to_pylist()[0]
                        if names:
                            entry[field] = _named(entry[field], names)
                    except UnicodeDecodeError:
                        entry = None
                    yield _image(entry, part, ImageRow(f"{part.name}.{number}", part.path))
                    number += 1
    except _PARQUET_ERRORS as error:
        raise _damaged_parquet(part.path, error) from error


def _named(labels: object, names: Sequence[str]) -> object:
    """Labels, or a list of them, by the names that the file has for its numbers."""
    if isinstance(labels, list):
        return [_named(label, names) for label in labels]
    return names[labels] if isinstance(labels, int) and 0 <= labels < len(names) else labels


def _damaged_parquet(path: str, error: BaseException) -> UserError:
    return UserError(f"{path} is not a Parquet file, or it is damaged ({error}). Get it again.")


def _image(entry: object, part: Part, row: ImageRow) -> RowAndBytes:
    """The image of an entry; `row` has its location, and a name for one that has none."""
    reading = part.reading
    assert reading is not None
    bad_entry = row._replace(faults=("bad_entry",)), None
    image = entry.get("image") if isinstance(entry, Mapping) else None
    if isinstance(image, Mapping):
        image = image.get("path") if image.get("bytes") is None else _bytes(image["bytes"])
    if not isinstance(entry, Mapping) or not isinstance(image, str | bytes):
        return bad_entry
    name = entry.get("id")
    if name is None:
        name = image if isinstance(image, str) else row.name
    if type(name) not in (str, int) or not 0 < len(str(name)) <= MAX_ID_LENGTH:
        return bad_entry
    row = row._replace(name=str(name))
    try:
        labels = reading.classes.labels(entry.get(reading.label_field), several=reading.several)
        labelled = row._replace(labels=labels, weights=weights(entry.get("weights"), labels))
    except BadLabelError:
        return row._replace(faults=("bad_label",)), None
    if isinstance(image, bytes):
        return labelled.located(Location()), image
    try:
        data, location = _file(image, reading.images_root)
    except _RefusedError as refused:
        return row._replace(faults=refused.args), None
    return labelled.located(location), data


def _bytes(value: object) -> bytes | None:
    """Bytes of Parquet as they are, of JSON from base64; None if they are neither."""
    if isinstance(value, bytes):
        return value
    try:
        return base64.b64decode(value, validate=True) if isinstance(value, str) else None
    except (binascii.Error, ValueError):
        return None


class _RefusedError(Exception):
    """A path that must not be read; its argument is the fault."""


def _file(path: str, root: str) -> tuple[bytes, Location]:
    """The bytes of a file and their location. Raises _RefusedError, OSError."""
    try:
        real = os.path.realpath(os.path.join(root, path))
        root = os.path.realpath(root)
        if os.path.commonpath([real, root]) != root:
            raise _RefusedError("outside")
        status = os.stat(real)
        if not stat.S_ISREG(status.st_mode):  # a pipe would not end
            raise _RefusedError("no_file")
        if status.st_size > MAX_MEMBER_BYTES:
            raise _RefusedError("too_large")
        data = Path(real).read_bytes()
    except (FileNotFoundError, NotADirectoryError, PermissionError, ValueError) as error:
        raise _RefusedError("missing") from error  # ValueError: a zero in the name
    except OSError as error:
        if error.errno in _NO_SUCH_NAME:
            raise _RefusedError("missing") from error
        raise
    return data, Location(real, 0, len(data))
