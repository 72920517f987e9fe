"""Lists of images with their labels, such as those of JFT: JSON lines, Parquet, CSV, TSV.

An entry of JSON lines or Parquet has the fields
- `image`: a path, relative to the folder of the list or to --images_root; or the file's bytes (in
  JSON as base64) as `{"bytes": ...}`, as in Hugging Face's data sets;
- `labels`, or the name in --label_field: classes, as numbers or names;
- `weights`: of the labels, optional;
- `id`: unique in the set; without it, the path or the position in the list.

A table, CSV or TSV, has a column of files and one of classes, and the columns' names in its first
line. As in Kaggle's competitions files may lack their extension, and lie in a folder beside it.
"""

import base64
import binascii
import contextlib
import csv
import errno
import io
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from vit_jax.core.class_names import normal
from vit_jax.core.errors import UserError, nearest
from vit_jax.core.image_files import is_image_name
from vit_jax.tools.prepare.collection import (
    Collection,
    CollectionRequest,
    ImageRow,
    Labels,
    Part,
    RowAndBytes,
    file_errors,
    is_line,
)
from vit_jax.tools.prepare.entries import (
    BadLabelError,
    Reading,
    SourceFile,
    classes,
    classes_of_lists,
    names_in_parquet,
    source_files,
    weights,
)
from vit_jax.tools.prepare.faults import FAULTS
from vit_jax.tools.prepare.image_folder import PassedOver, parts_of_folder
from vit_jax.tools.prepare.tars import MAX_MEMBER_BYTES

TABLES = (".csv", ".tsv")
SUFFIXES = (".jsonl", ".ndjson", ".json", ".parquet", *TABLES)
MAX_LINE_BYTES = 64 * 2**20
MAX_ID_LENGTH = 4096
LEAST_PART_BYTES = 2**20
LINES_PER_PART = 1000  # about
ROWS_AT_ONCE = 16  # of Parquet
_PARQUET_ERRORS = (OSError, pa.ArrowException, MemoryError)
_NO_SUCH_NAME = (errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL)
# Names of columns, in lower case; `id` only where there is none of the others.
_IMAGE_COLUMNS = (
    "image", "path", "file", "filename", "file_name", "filepath", "file_path", "image_path",
    "image_name", "image_file", "img", "img_path",
)  # fmt: skip
_ID_COLUMNS = ("id", "image_id", "img_id", "uuid")
_LABEL_COLUMNS = ("label", "labels", "class", "class_name", "category", "target")
_WHOLE = re.compile(r"-?[0-9]+")
_DELIMITERS = ",;\t|"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_MAX_TABLE_BYTES = 2**30
_MARKS = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}


def collection(request: CollectionRequest) -> Collection:
    """Images of all lists. UserError: no lists, no classes, columns that lack; or both kinds."""
    files = source_files(request.source, SUFFIXES)
    tables = [file for file in files if file.path.suffix.lower() in TABLES]
    notes: list[str] = []
    if tables:
        several = False
        names, parts, notes = _collect_tables(request, files, tables)
    else:
        if request.image_field is not None:
            raise UserError("--image_field is for CSV and TSV: other lists have `image`.")
        several = request.multi_label is not False
        field = request.label_field or ("labels" if several else "label")
        parquet = [file.path for file in files if file.path.suffix.lower() == ".parquet"]
        known = classes_of_lists(request, field, parquet)
        images_root = _images_root(request)
        names, parts = known.names, []
        for file in files:
            reading = Reading(known, field, several, str(images_root or file.path.parent))
            of_file = _parts_of_parquet if file.path in parquet else _parts_of_json
            parts += of_file(file, reading)
    if not parts:
        raise UserError(f"--source={request.source}: the files list no images.")
    return Collection(
        name="records",
        description="Images of lists.",
        class_names=names,
        parts=parts,
        multi_label=several,
        notes=notes,
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
    with file_errors(part.path):
        for offset, line in _lines(part):
            row = ImageRow(f"{list_name}@{offset}", part.path, offset, len(line or b""))
            try:
                entry = json.loads(line) if line is not None else None
            except (ValueError, RecursionError):
                entry = None
            yield _image(entry, part, row)


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
                            entry[field] = _label_names(entry[field], names)
                    except UnicodeDecodeError:
                        entry = None
                    yield _image(entry, part, ImageRow(f"{part.name}.{number}", part.path))
                    number += 1
    except _PARQUET_ERRORS as error:
        raise _damaged_parquet(part.path, error) from error


def _label_names(labels: object, names: Sequence[str]) -> object:
    """Labels, or a list of them, by the names that the file has for its numbers."""
    if isinstance(labels, list):
        return [_label_names(label, names) for label in labels]
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
        image = image.get("path") if image.get("bytes") is None else _decoded_bytes(image["bytes"])
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
        label_weights = weights(entry.get("weights"), labels)
    except BadLabelError:
        return row._replace(faults=("bad_label",)), None
    data: bytes | None = image if isinstance(image, bytes) else None
    if isinstance(image, str):
        row, data = _from_file(row, image, reading.images_root)
    else:
        row = row.located()
    return (row if data is None else row._replace(labels=labels, weights=label_weights)), data


def _decoded_bytes(value: object) -> bytes | None:
    """Bytes of Parquet as they are, of JSON from base64; None if they are neither."""
    if isinstance(value, bytes):
        return value
    try:
        return base64.b64decode(value, validate=True) if isinstance(value, str) else None
    except (binascii.Error, ValueError):
        return None


def _from_file(row: ImageRow, path: str, root: str) -> RowAndBytes:
    """The image at a path, or the fault for which it is not read. Raises OSError."""
    try:
        real, fault = _regular_file(os.path.realpath(root), path)
        if not fault and os.stat(real).st_size > MAX_MEMBER_BYTES:
            fault = "too_large"
        data = None if fault else Path(real).read_bytes()
    except (FileNotFoundError, NotADirectoryError, PermissionError, ValueError):
        fault, data = "missing", None  # ValueError: a zero in the name
    except OSError as error:
        if error.errno not in _NO_SUCH_NAME:
            raise
        fault, data = "missing", None
    if data is None:
        return row._replace(faults=(fault,)), None
    return row.located(real, 0, len(data)), data


def _regular_file(root: str, path: str) -> tuple[str, str]:
    """(the real path of a file below the real path `root`, "" or its fault). Raises OSError."""
    real = os.path.realpath(os.path.join(root, path))
    if os.path.commonpath([real, root]) != root:
        return real, "outside"
    return real, "" if stat.S_ISREG(os.stat(real).st_mode) else "no_file"  # a pipe would not end


class _Row(NamedTuple):
    line: int  # of the file, from 1
    image: str
    label: str


class Table(NamedTuple):
    """The rows of one CSV or TSV."""

    file: SourceFile
    rows: list[_Row]
    bad_lines: list[int]  # with another number of fields than the first line
    note: str  # which columns are read, and which encoding was taken


def _collect_tables(
    request: CollectionRequest, files: Sequence[SourceFile], tables: Sequence[SourceFile]
) -> tuple[Sequence[str], list[Part], list[str]]:
    """Names of classes, parts, notes. UserError: other lists beside the tables, lists of labels."""
    if len(files) > len(tables):
        other = next(file.path for file in files if file not in tables)
        raise UserError(
            f"--source={request.source} has tables ({tables[0].path}) and other lists ({other}):"
            " name those of one kind, as --source=labels.csv."
        )
    if request.multi_label:
        raise UserError(
            "--multi_label: a row of a CSV has one label. List several as JSON lines or Parquet."
        )
    read = [read_table(file, request.image_field, request.label_field) for file in tables]
    notes = [table.note for table in read]
    if request.classes is not None or request.num_classes is not None:
        known = classes(request)
        names: Sequence[str] = known.names
        label: Callable[[str], int] = known.label_in_text
    else:
        names = _inferred_classes(read)
        label = {name: number for number, name in enumerate(names)}.__getitem__
        more = " ..." if len(names) > 5 else ""
        notes.append(f"The classes are the labels, sorted: {', '.join(names[:5])}{more}.")
    images_root = _images_root(request)
    parts = [
        part
        for table in read
        for part in _parts_of_table(table, label, images_root or table.file.path.parent)
    ]
    # What is left out comes last.
    return names, sorted(parts, key=lambda part: part.reader in FAULTS), notes


def read_table(file: SourceFile, image_field: str | None, label_field: str | None) -> Table:
    """The rows of a table. UserError: not a table, a column is missing, or two would do."""
    text, encoding = _decoded(file.path)
    first = next(iter(text.splitlines()), "")
    fields = lambda one: next(csv.reader([first], delimiter=one), [])
    delimiter = "\t" if file.path.suffix.lower() == ".tsv" else ""
    delimiter = delimiter or max(_DELIMITERS, key=lambda one: len(fields(one)))
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows: list[_Row] = []
    bad_lines: list[int] = []
    line = 1
    try:
        columns = [name.strip() for name in next(reader, [])]
        image = _column(file.path, columns, "image_field", image_field, _IMAGE_COLUMNS, _ID_COLUMNS)
        label = _column(file.path, columns, "label_field", label_field, _LABEL_COLUMNS)
        line = reader.line_num
        while (fields_of_row := next(reader, None)) is not None:
            line, start = reader.line_num, line + 1
            if not any(map(str.strip, fields_of_row)):
                continue
            if len(fields_of_row) != len(columns):
                bad_lines.append(start)
                continue
            values = fields_of_row[image].strip(), normal(fields_of_row[label].strip())
            rows.append(_Row(start, *values))
    except csv.Error as error:
        raise UserError(
            f"{file.path}, line {reader.line_num}: {error}. A field with a quotation mark or the "
            'delimiter in it is written "in quotation marks", and marks inside it twice.'
        ) from error
    others = [name for number, name in enumerate(columns) if number not in (image, label)]
    note = f"{file.name}: images of the column {columns[image]!r}, labels of {columns[label]!r}"
    note += f"; not read: {', '.join(map(repr, others[:10]))}" if others else ""
    note += f". It is not UTF-8, and read as {encoding}" if encoding != "utf-8-sig" else ""
    return Table(file, rows, bad_lines, note + ".")


def _decoded(path: Path) -> tuple[str, str]:
    """(the text, its encoding): UTF-8, UTF-16 with a mark, else what Windows has for Latin-1."""
    with file_errors(path):
        if path.stat().st_size > _MAX_TABLE_BYTES:
            raise UserError(f"{path} has more than 1 GiB: make it a Parquet file.")
        data = path.read_bytes()
    for encoding in (_MARKS.get(data[:2], "utf-8-sig"), "cp1252"):
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError:
            continue
        if "\0" not in text:
            return text, encoding
    raise UserError(f"{path} is not text, neither UTF-8 nor Latin-1: save it as CSV in UTF-8.")


def _column(
    path: Path, columns: list[str], flag: str, wanted: str | None, *known: Sequence[str]
) -> int:
    """The place of the column that is wanted, or of the only one with a known name."""
    listed = ", ".join(map(repr, columns[:20])) or "none"
    if wanted is not None:
        found = [number for number, name in enumerate(columns) if name == wanted]
    else:
        by_name = [name.lower().replace(" ", "_") for name in columns]
        places = ([n for n, name in enumerate(by_name) if name in names] for names in known)
        found = next((some for some in places if some), [])
    what = "the files of the images" if flag == "image_field" else "their classes"
    if len(found) > 1:
        both = " and ".join(repr(columns[number]) for number in found)
        raise UserError(f"{path} has the columns {both} for {what}: name one with --{flag}.")
    if not found and wanted is not None:
        raise UserError(
            f"{path} has no column {wanted!r}; it has {listed}. {nearest(wanted, columns)}"
        )
    if not found:
        raise UserError(
            f"{path}: no column is known to have {what}. Its first line names the columns {listed}:"
            f" name one with --{flag}."
        )
    return found[0]


def _inferred_classes(tables: Sequence[Table]) -> list[str]:
    """The labels of all rows: whole numbers in their order, else sorted as text. UserError."""
    names = sorted({row.label for table in tables for row in table.rows if row.label})
    for name in names:
        if not is_line(name):
            raise UserError(f"{tables[0].file.path}: {name!r} is not a class's name, of one line.")
    if not names:
        raise UserError(f"{tables[0].file.path}: no row has a label.")
    whole = all(_WHOLE.fullmatch(name) for name in names)
    return sorted(names, key=int) if whole else names


def _parts_of_table(table: Table, label: Callable[[str], int], root: Path) -> list[Part]:
    """Parts of the files that are there, and of rows that are left out.

    Raises:
      UserError: an address instead of a path; a file with two labels, or that may be two files.
    """
    labels: dict[str, Labels] = {}
    first: dict[str, _Row] = {}
    conflicts: list[tuple[_Row, _Row]] = []
    files, left_out = _Files(root), PassedOver(root)
    for line in table.bad_lines:
        left_out.add("bad_entry", f"{table.file.name}, line {line}")
    for row in table.rows:
        if _URL.match(row.image):
            raise UserError(
                f"{table.file.path}, line {row.line}: {row.image} is an address, and images are "
                "read from a disk: download them, and put their paths in the table."
            )
        name, fault = files.find(row, table.file.path) if row.image else ("", "bad_entry")
        named = name or f"{table.file.name}, line {row.line}"
        if fault:
            left_out.add(fault, row.image or named)
        elif name in first:
            if first[name].label != row.label:
                conflicts.append((first[name], row))
            left_out.add("same_name", name)
        elif not row.label:
            left_out.add("no_label", name)
        else:
            first[name] = row
            try:
                labels[name] = (label(row.label),)
            except BadLabelError:
                left_out.add("bad_label", name)
    if conflicts:
        one, other = conflicts[0]
        raise UserError(
            f"{table.file.path}: {len(conflicts):,} rows give an image another label than a row "
            f"before them, first {one.image}: {one.label!r} in line {one.line}, {other.label!r} in "
            f"line {other.line}. Keep one of each, or list several labels as JSON lines."
        )
    split, title = table.file.split, table.file.name
    return [
        *parts_of_folder(title, root, list(labels), split, labels),
        *left_out.parts(),
    ]


class _Files:
    """The files below a folder, by the names that rows give them."""

    def __init__(self, root: Path) -> None:
        self._root, self._real = root, os.path.realpath(root)
        # Folder -> name, or stem, as `normal` has it -> paths.
        self._listed: dict[str, dict[str, list[str]]] = {}
        self._folders: list[str] | None = None

    def find(self, row: _Row, table: Path) -> tuple[str, str]:
        """(the path below the root, "") or ("", fault). UserError if several files are meant."""
        paths = dict.fromkeys((row.image, row.image.replace("\\", "/")))
        for path in paths:
            with contextlib.suppress(OSError):
                real, fault = _regular_file(self._real, path)
                if not fault:
                    return os.path.relpath(os.path.join(self._root, path), self._root), ""
                if fault == "outside" or not os.path.isdir(real):
                    return "", fault
        found: dict[str, None] = {}
        for path in paths:
            inside, name = os.path.split(path)
            for folder in ("", *self._beside()):
                below = os.path.normpath(os.path.join(folder, inside))
                found |= dict.fromkeys(self._named(below).get(normal(name), []))
        if len(found) > 1:
            raise UserError(
                f"{table}, line {row.line}: {row.image} may be {' or '.join(list(found)[:3])}: give"
                " the folder with --images_root, or paths with extensions in the table."
            )
        return (next(iter(found)), "") if found else ("", "missing")

    def _beside(self) -> list[str]:
        if self._folders is None:
            with os.scandir(self._root) as entries:
                names = sorted(entry.name for entry in entries if os.path.isdir(entry.path))
            self._folders = [name for name in names if not name.startswith(".")]
        return self._folders

    def _named(self, folder: str) -> dict[str, list[str]]:
        if folder not in self._listed:
            named: dict[str, list[str]] = {}
            spelt = self._spelt(folder)
            for name in filter(is_image_name, self._entries(spelt)):
                for known in {normal(known): 0 for known in (name, os.path.splitext(name)[0])}:
                    named.setdefault(known, []).append(os.path.normpath(os.path.join(spelt, name)))
            self._listed[folder] = named
        return self._listed[folder]

    def _spelt(self, folder: str) -> str:
        """The folder as the file system has it, whose names may be in Unicode's other form."""
        if os.path.isdir(self._root / folder):
            return folder
        above, name = os.path.split(folder)
        above = self._spelt(above)
        same = [entry for entry in self._entries(above) if normal(entry) == normal(name)]
        return os.path.join(above, *same[:1] or [name])

    def _entries(self, folder: str) -> list[str]:
        try:
            return sorted(os.listdir(self._root / folder))
        except OSError:
            return []
