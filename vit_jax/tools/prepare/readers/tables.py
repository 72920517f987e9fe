"""Tables of images and their labels, as CSV or TSV: a column of files and one of classes.

The first line names the columns. Files are relative to the folder of the table or to --images_root;
as in Kaggle's competitions they may lack their extension, and lie in a folder beside the table.
"""

import csv
import io
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from vit_jax.core.class_names import normal
from vit_jax.core.errors import UserError, nearest
from vit_jax.core.image_files import is_image_name
from vit_jax.tools.prepare.catalogue import Labels
from vit_jax.tools.prepare.collection import Part, is_line
from vit_jax.tools.prepare.readers.image_folder import PassedOver, parts_of_folder
from vit_jax.tools.prepare.readers.labels import BadLabelError, Classes
from vit_jax.tools.prepare.readers.source_files import SourceFile

SUFFIXES = (".csv", ".tsv")
# Names of columns, in lower case; `id` only where there is none of the others.
_OF_IMAGES = (
    "image", "path", "file", "filename", "file_name", "filepath", "file_path", "image_path",
    "image_name", "image_file", "img", "img_path",
)  # fmt: skip
_OF_IDS = ("id", "image_id", "img_id", "uuid")
_OF_LABELS = ("label", "labels", "class", "class_name", "category", "target")
_WHOLE = re.compile(r"-?[0-9]+")
_DELIMITERS = ",;\t|"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_MAX_BYTES = 2**30
_MARKS = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}


class _Row(NamedTuple):
    line: int  # of the file, from 1
    image: str
    label: str


class Table(NamedTuple):
    """The rows of one file."""

    file: SourceFile
    rows: list[_Row]
    bad_lines: list[int]  # with another number of fields than the first line
    note: str  # which columns are read, and which encoding was taken


def read(file: SourceFile, image_field: str | None, label_field: str | None) -> Table:
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
        image = _column(file.path, columns, "image_field", image_field, _OF_IMAGES, _OF_IDS)
        label = _column(file.path, columns, "label_field", label_field, _OF_LABELS)
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
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise UserError(f"{path} has more than 1 GiB: make it a Parquet file.")
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
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


def inferred_classes(tables: Sequence[Table]) -> list[str]:
    """The labels of all rows: whole numbers in their order, else sorted as text. UserError."""
    names = sorted({row.label for table in tables for row in table.rows if row.label})
    for name in names:
        if not is_line(name):
            raise UserError(f"{tables[0].file.path}: {name!r} is not a class's name, of one line.")
    if not names:
        raise UserError(f"{tables[0].file.path}: no row has a label.")
    whole = all(_WHOLE.fullmatch(name) for name in names)
    return sorted(names, key=int) if whole else names


def parts(table: Table, classes: Classes | Sequence[str], root: str) -> list[Part]:
    """Parts of the files that are there, and of rows that are left out.

    Raises:
      UserError: an address instead of a path; a file with two labels, or that may be two files.
    """
    labels: dict[str, Labels] = {}
    first: dict[str, _Row] = {}
    conflicts: list[tuple[_Row, _Row]] = []
    files, left_out = _Files(Path(root)), PassedOver()
    number = None if isinstance(classes, Classes) else {n: k for k, n in enumerate(classes)}
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
                labels[name] = _labels(row.label, classes, number)
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
        *parts_of_folder(title, Path(root), list(labels), split, labels),
        *left_out.parts(Path(root)),
    ]


def _labels(label: str, classes: Classes | Sequence[str], number: Mapping | None) -> Labels:
    if number is not None:
        return (number[label],)
    assert isinstance(classes, Classes)
    try:
        return (classes.label(label),)
    except BadLabelError:
        if not (label.isascii() and label.isdigit()):
            raise
        return (classes.label(int(label)),)


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
            full = os.path.join(self._root, path)
            try:
                if os.path.commonpath([os.path.realpath(full), self._real]) != self._real:
                    return "", "outside"
                if os.path.isfile(full):
                    return os.path.relpath(full, self._root), ""
                if os.path.exists(full) and not os.path.isdir(full):
                    return "", "no_file"
            except ValueError:  # a zero in the name
                return "", "missing"
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
