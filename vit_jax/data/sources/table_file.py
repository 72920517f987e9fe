"""Tables of images and labels: the columns of a CSV, TSV or Parquet, and the files that they name.

A table has a column of files and one of labels, by usual names or by those that are given, and may
have one of splits. Delimiters (`,`, `;`, tab, `|`) and encodings (UTF-8, UTF-16 with a mark, else
Latin-1) are recognised. Rows are columns of Arrow and NumPy: a table of millions of rows does not
make an object for each.
"""

import csv
import gzip
import io
import os
import posixpath
import re
from collections.abc import Sequence
from typing import IO, Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from vit_jax.core.class_names import normal
from vit_jax.core.errors import UserError, nearest
from vit_jax.core.image_files import EXTENSIONS, UNKNOWN_EXTENSIONS
from vit_jax.data import files

TABLES = (".csv", ".tsv", ".parquet", ".csv.gz", ".tsv.gz")
# Names of columns, in lower case; `id` only where there is none of the others.
_IMAGE_COLUMNS = (
    "image", "path", "file", "filename", "file_name", "filepath", "file_path", "image_path",
    "image_name", "image_file", "img", "img_path",
)  # fmt: skip
_ID_COLUMNS = ("id", "image_id", "img_id", "uuid")
_LABEL_COLUMNS = (
    "label", "labels", "class", "classes", "class_name", "category", "target", "tags",
)  # fmt: skip
_FLAG_COLUMNS = ("is_valid", "is_val")  # fastai's
_SPLIT_COLUMNS = ("split", "subset", *_FLAG_COLUMNS, "fold", "kfold")  # the first that is there
_FLAGS = {"true": "val", "1": "val", "false": "train", "0": "train", "": ""}
_FAULTS = (OSError, pa.ArrowException, MemoryError, EOFError)
_MARKS = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_DELIMITERS = ",;\t|"
_WHOLE = re.compile(r"-?[0-9]+")
_SEPARATORS = "|;,"  # that labels may have between them
_TEXT = pa.large_string()
_NO_LABEL = pa.array(["nan", "NaN", "<NA>"], _TEXT)  # as pandas writes it
_URL = r"^[A-Za-z][A-Za-z0-9+.-]*://"
_CHUNK = 2**16  # rows that are Python's for a moment


def is_table(path: str) -> bool:
    """Whether a path is named like a table that is read."""
    return path.lower().endswith(TABLES)


class Column(NamedTuple):
    """A column to read: by `name`, or by a usual name; `option` names it instead, for messages."""

    option: str
    name: str | None
    needed: bool = True


class Columns(NamedTuple):
    """The columns of a table that are read; and what stands between several labels of a cell."""

    image: Column
    label: Column
    split: Column
    separator: Column


class Table(NamedTuple):
    """The rows of a table, by column. Cells have no spaces at their ends, and are composed."""

    path: str
    images: pa.Array  # [n] text, "" for an empty cell
    counts: np.ndarray  # int64 [n]: labels of each
    labels: pa.Array  # [counts.sum()] text, never empty
    several: bool  # whether a row may have several labels, or none
    splits: pa.Array | None  # [n] text
    split_column: str
    lines: np.ndarray  # int64 [n]: lines of the file, or rows of Parquet
    bad_lines: list[int]  # with another number of fields than the first line
    note: str  # which columns are read, and what else a person should know


def read_table(path: str, columns: Columns) -> Table:
    """Reads a table. UserError: not a table, a column is missing, or two would do."""
    if columns.separator.name == "":
        raise UserError(
            f"{columns.separator.option} is empty: give what stands between labels, such as | or a "
            "space, or none where a cell is one label."
        )
    is_parquet = path.lower().endswith(".parquet")
    names, cells, lines, bad_lines, remark = (_parquet if is_parquet else _text)(path, columns)
    images, labels, splits = cells
    separator = columns.separator.name
    n = len(lines)
    if separator is not None and labels is not None and not pa.types.is_large_list(labels.type):
        split_cells = (
            pc.utf8_split_whitespace(labels)
            if separator.isspace()
            else pc.split_pattern(labels, separator)
        )
        labels = split_cells
    several = labels is not None and (separator is not None or pa.types.is_large_list(labels.type))
    if labels is None:
        counts, flat = np.zeros(n, np.int64), pa.array([], _TEXT)
    elif several:
        counts = labels.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        flat = labels.flatten()
    else:
        counts, flat = np.ones(n, np.int64), labels
    flat = _without_fractions(_trimmed(flat))
    kept = pc.and_(pc.not_equal(flat, ""), pc.invert(pc.is_in(flat, _NO_LABEL)))
    is_kept = kept.to_numpy(zero_copy_only=False)
    row_of = np.repeat(np.arange(n), counts)[is_kept]
    image_name, label_name, split_name = names
    note = f"{os.path.basename(path)}: images of the column {image_name!r}"
    note += f", labels of {label_name!r}" * (label_name is not None)
    note += f", splits of {split_name!r}" * (split_name is not None)
    labels = flat.filter(kept)
    return Table(
        path=path,
        images=_trimmed(images),
        counts=np.bincount(row_of, minlength=n).astype(np.int64),
        labels=labels,
        several=several,
        splits=None if splits is None else _split_names(path, split_name or "", splits, columns),
        split_column=split_name or "",
        lines=lines,
        bad_lines=bad_lines,
        note=note + remark + ("" if several else _unsplit(labels, columns.separator.option)),
    )


def _trimmed(cells: pa.Array) -> pa.Array:
    return pc.utf8_normalize(pc.fill_null(pc.utf8_trim_whitespace(cells), ""), "NFC")


def _without_fractions(cells: pa.Array) -> pa.Array:
    """Whole numbers that pandas wrote as 3.0, since a cell of their column was empty, as 3."""
    given = cells.filter(pc.not_equal(cells, ""))
    if not len(given) or not pc.all(pc.match_substring_regex(given, r"^-?\d+\.0$|^nan$")).as_py():
        return cells
    return pc.replace_substring(cells, ".0", "")


def _unsplit(labels: pa.Array, option: str) -> str:
    """A note on labels that look like several in one cell; "" if none do."""
    names = set(labels.unique().to_pylist())
    for separator in _SEPARATORS:
        for name in sorted(names):
            parts = [part.strip() for part in name.split(separator)]
            if len(parts) > 1 and names.issuperset(parts):
                return (
                    f". {name!r} is one class; if these are several labels of an image, set "
                    f"{option}={separator!r}"
                )
    return ""


def _split_names(path: str, column: str, cells: pa.Array, columns: Columns) -> pa.Array:
    """The split of each row; for a column of yes and no `val` and `train`. UserError."""
    cells = _without_fractions(_trimmed(cells))
    if column.lower() not in _FLAG_COLUMNS:
        return cells
    encoded = pc.utf8_lower(cells).dictionary_encode()
    values = encoded.dictionary.to_pylist()
    if unknown := [value for value in values if value not in _FLAGS]:
        raise UserError(
            f"{path} has {unknown[0]!r} in its column {column!r}, which says whether an image "
            f"is in the split `val`. Write true or false, or set {columns.split.option} to another."
        )
    splits = pa.array([_FLAGS[value] for value in values], _TEXT)
    return splits.take(encoded.indices)


def check_cells(table: Table) -> None:
    """UserError for a row that names no image."""
    if table.bad_lines:
        raise UserError(
            f"{table.path}, line {table.bad_lines[0]:,}: another number of fields than the first "
            f"line has (such lines: {len(table.bad_lines):,}). A field with the delimiter in it is "
            'written "in quotation marks".'
        )
    if not len(table.images):
        raise UserError(f"{table.path} has no rows below the line that names the columns.")
    _refuse(table, pc.equal(table.images, ""), "names no image. Write its file, or delete the row")


def _refuse(table: Table, rows: pa.Array, what: str) -> None:
    """UserError that names the first of some rows; none is fine."""
    places = np.flatnonzero(rows.to_numpy(zero_copy_only=False))
    if len(places):
        cell = f"{table.images[int(places[0])]} " * bool(table.images[int(places[0])].as_py())
        raise UserError(
            f"{table.path}, line {table.lines[places[0]]:,}: {cell}{what} (such rows: "
            f"{len(places):,})."
        )


def _find_columns(path: str, names: Sequence[str], columns: Columns) -> list[int | None]:
    image = _column(
        path, names, columns.image, "the files of the images", _IMAGE_COLUMNS, _ID_COLUMNS
    )
    label = _column(path, names, columns.label, "their classes", _LABEL_COLUMNS)
    by_rank = [(name,) for name in _SPLIT_COLUMNS]
    return [image, label, _column(path, names, columns.split, "their splits", *by_rank)]


def _column(
    path: str, names: Sequence[str], column: Column, what: str, *known: Sequence[str]
) -> int | None:
    """The place of the column that is wanted, or of the only one with a known name."""
    listed = ", ".join(map(repr, names[:20])) or "none"
    if column.name is not None:
        found = [number for number, name in enumerate(names) if name == column.name]
    else:
        by_name = [name.lower().replace(" ", "_") for name in names]
        places = ([n for n, name in enumerate(by_name) if name in some] for some in known)
        found = next((some for some in places if some), [])
    if len(found) > 1:
        both = " and ".join(repr(names[number]) for number in found)
        raise UserError(
            f"{path} has the columns {both} for {what}: name one with {column.option}=NAME."
        )
    if found:
        return found[0]
    if column.name is not None:
        raise UserError(
            f"{path} has no column {column.name!r}; it has {listed}. {nearest(column.name, names)}"
        )
    if column.needed:
        raise UserError(
            f"{path}: no column is known to have {what}. Its first line should name the columns, "
            f"and has {listed}: name one with {column.option}=NAME, or put such a line above the "
            "rows, as image,label."
        )
    return None


class _Cells(NamedTuple):
    names: list[str | None]  # of the columns of images, labels and splits
    cells: list[Any]  # theirs: [n] text, or lists of text
    lines: np.ndarray
    bad_lines: list[int]
    remark: str


def _text(path: str, columns: Columns) -> _Cells:
    """The columns of a CSV or TSV, `_CHUNK` rows at a time."""
    name = path.lower().removesuffix(".gz")
    try:
        with _opened(path) as file:
            start = file.read(_CHUNK)
        for encoding in (_MARKS.get(start[:2], "utf-8-sig"), "cp1252"):
            if "utf-16" not in encoding and b"\0" in start:
                break
            try:
                with io.TextIOWrapper(_opened(path), encoding, newline="") as text:
                    return _rows_of_text(path, text, columns, name.endswith(".tsv"))
            except UnicodeError:
                continue
    except _FAULTS as error:
        raise UserError(f"{path} cannot be read ({error}). Get it again.") from error
    raise UserError(f"{path} is not text, neither UTF-8 nor Latin-1: save it as CSV in UTF-8.")


def _opened(path: str) -> IO[bytes]:
    if files.is_remote(path):
        file: IO[bytes] = io.BytesIO(files.read(path))
    else:
        file = open(path, "rb")  # noqa: SIM115, the caller closes it
    return cast("IO[bytes]", gzip.open(file)) if path.lower().endswith(".gz") else file


def _rows_of_text(path: str, text: io.TextIOWrapper, columns: Columns, tabs: bool) -> _Cells:
    first = text.readline()
    fields = lambda one: next(csv.reader([first], delimiter=one), [])
    delimiter = "\t" if tabs else max(_DELIMITERS, key=lambda one: len(fields(one)))
    text.seek(0)
    reader = csv.reader(text, delimiter=delimiter, strict=True)
    bad_lines: list[int] = []
    lines: list[np.ndarray] = []
    try:
        names = [name.strip() for name in next(reader, [])]
        places = _find_columns(path, names, columns)
        taken = [place for place in places if place is not None]
        chunks: list[list[pa.Array]] = [[pa.array([], _TEXT)] for _ in taken]
        line, width = reader.line_num, len(names)
        while True:
            of_chunk: list[int] = []
            whole: list[list[str]] = []
            for row in reader:
                start, line = line + 1, reader.line_num
                if len(row) == width and (row[taken[0]] or any(map(str.strip, row))):
                    of_chunk.append(start)
                    whole.append(row)
                    if len(whole) == _CHUNK:
                        break
                elif any(map(str.strip, row)):
                    bad_lines.append(start)
            lines.append(np.array(of_chunk, np.int64))
            for chunk, place in zip(chunks, taken, strict=True):
                chunk.append(pa.array([row[place] for row in whole], _TEXT))
            if len(of_chunk) < _CHUNK:
                break
    except csv.Error as error:
        raise UserError(
            f"{path}, line {reader.line_num}: {error}. A field with a quotation mark or the "
            'delimiter in it is written "in quotation marks", and marks inside it twice.'
        ) from error
    read = iter([pa.concat_arrays(chunk) for chunk in chunks])
    others = [name for number, name in enumerate(names) if number not in taken]
    remark = f"; not read: {', '.join(map(repr, others[:10]))}" if others else ""
    latin = text.encoding == "cp1252"
    remark += f". It is not UTF-8, and read as {text.encoding}" if latin else ""
    return _Cells(
        [None if place is None else names[place] for place in places],
        [None if place is None else next(read) for place in places],
        np.concatenate(lines),
        bad_lines,
        remark,
    )


def _parquet(path: str, columns: Columns) -> _Cells:
    """The columns of a Parquet file, all of them at once."""
    try:
        source = pa.BufferReader(files.read(path)) if files.is_remote(path) else path
        with pq.ParquetFile(source) as file:
            names = file.schema_arrow.names
            places = _find_columns(path, names, columns)
            found = [None if place is None else names[place] for place in places]
            table = file.read([name for name in found if name is not None])
    except _FAULTS as error:
        raise UserError(
            f"{path} is not a Parquet file, or it is damaged ({error}). Get it again."
        ) from error
    image_name, label_name, split_name = found
    cells = [
        None if name is None else _as_text(path, name, table[name].combine_chunks(), lists=lists)
        for name, lists in ((image_name, False), (label_name, True), (split_name, False))
    ]
    others = [name for name in names if name not in found]
    remark = f"; not read: {', '.join(map(repr, others[:10]))}" if others else ""
    return _Cells(found, cells, np.arange(1, len(table) + 1), [], remark)


def _as_text(path: str, name: str, cells: pa.Array, *, lists: bool) -> pa.Array:
    """Text of any column; with `lists`, lists of text where its cells are lists. UserError."""
    kind = cells.type
    are_lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    try:
        if lists and any(is_list(kind) for is_list in are_lists):
            return cells.cast(pa.large_list(kind.value_type)).cast(pa.large_list(_TEXT))
        if pa.types.is_floating(kind):
            cells = cells.cast(pa.float64())
            whole = pc.equal(cells, pc.floor(cells))
            if pc.all(pc.or_(pc.is_nan(cells), whole)).as_py():
                cells = pc.if_else(pc.is_nan(cells), None, cells).cast(pa.int64())
        return cells.cast(_TEXT)
    except pa.ArrowException as error:
        raise UserError(
            f"{path}: the column {name!r} has {kind}, not text or numbers. Where it has the bytes "
            f"of images, make a data set: vit-jax prepare records --source={path}."
        ) from error


def class_order(labels: Sequence[str]) -> list[str]:
    """Names of classes in their order: whole numbers by their size, others as text."""
    in_text = sorted(labels)
    try:
        return sorted(in_text, key=int) if all(map(_WHOLE.fullmatch, in_text)) else in_text
    except ValueError:
        return in_text


# --- the files


class Found(NamedTuple):
    """Where the images of a table are."""

    folders: list[str]
    prefixes: list[str]  # "" for the table's folder, else with a slash behind
    places: np.ndarray  # int32 [n]: the folder of each
    names: pa.Array  # [n] text
    found: np.ndarray  # bool [n]
    outside: np.ndarray  # bool [n]: a path that leaves the table's folder by ".."


class _Listing(NamedTuple):
    """The files of a folder."""

    names: pa.Array  # [n] text
    composed: pa.Array  # [n]: as they are compared
    images: np.ndarray  # int64 [m]: places of the images
    stems: pa.Array  # [m]: names without extension

    @classmethod
    def read(cls, folder: str) -> "_Listing":
        """The listing; an empty one if there is no such folder. UserError if it is not readable."""
        try:
            if files.is_remote(folder):
                names = [entry.name for entry in files.list_folder(folder) if entry.is_file]
            else:
                with os.scandir(folder) as entries:
                    names = [entry.name for entry in entries if _is_file(entry)]
        except (FileNotFoundError, NotADirectoryError):
            names = []
        except OSError as error:
            raise UserError(f"{folder} cannot be read: {error.strerror}.") from error
        try:
            listed = pa.array(names, _TEXT)
        except UnicodeEncodeError:  # which no table can name
            listed = pa.array([name for name in names if name.isprintable()], _TEXT)
        composed = pc.utf8_normalize(listed, "NFC")
        kinds = "|".join(kind[1:] for kind in sorted({*EXTENSIONS, *UNKNOWN_EXTENSIONS}))
        is_image = pc.match_substring_regex(composed, rf"(?i)^[^.].*\.({kinds})$")
        images = np.flatnonzero(is_image.to_numpy(zero_copy_only=False))
        stems = pc.replace_substring_regex(composed.filter(is_image), r"\.[^.]*$", "")
        return cls(listed, composed, images, stems)

    def find(self, names: pa.Array) -> tuple[np.ndarray, np.ndarray]:
        """(place of each name, int64, -1: not there; whether its stem is of several images)."""
        direct = pc.index_in(names, value_set=self.composed).fill_null(-1)
        places = direct.to_numpy(zero_copy_only=False).astype(np.int64)
        twice = np.zeros(len(names), bool)
        rest = np.flatnonzero(places < 0)
        if len(rest) and len(self.stems):
            some = names.take(pa.array(rest))
            by_stem = pc.index_in(some, value_set=self.stems).fill_null(-1)
            found = by_stem.to_numpy(zero_copy_only=False)
            places[rest] = np.where(found < 0, -1, self.images[found])
            counts = self.stems.value_counts()
            several = counts.filter(pc.greater(counts.field("counts"), 1)).field("values")
            twice[rest] = pc.is_in(some, several).to_numpy(zero_copy_only=False)
        return places, twice


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # links in a circle
        return False


def find_files(home: str, table: Table, *, beside: str = "") -> Found:
    """The images of a table in the folder `home`: at their paths, else in a folder beside it.

    `beside` is the folder that is looked into before the others. A path that leaves the folder by
    ".." is not followed. UserError for an address, and for an image that may be two.
    """
    what = (
        "is an address, and images are read from a disk. Download them, and put their paths there"
    )
    _refuse(table, pc.match_substring_regex(table.images, _URL), what)
    cells = pc.replace_substring(table.images, "\\", "/")
    inside = pc.replace_substring_regex(cells, r"[^/]*$", "").dictionary_encode()
    codes = inside.indices.to_numpy()
    ends = np.cumsum(np.bincount(codes, minlength=len(inside.dictionary)))
    by_folder = np.split(np.argsort(codes, kind="stable"), ends[:-1])
    search = _Search(home, table, pc.replace_substring_regex(cells, r"^.*/", ""))
    subfolders: list[str] | None = None
    for written, rows in zip(inside.dictionary.to_pylist(), by_folder, strict=True):
        path = posixpath.normpath(written) if written else ""
        path = "" if path == "." else path
        search.places[rows] = search.number(path)
        if path.split("/")[0] == "..":
            search.outside[rows] = True
            continue
        rest = search.look_in([path], rows)
        if len(rest) and path[:1] != "/":
            rest = search.look_in([_joined(beside, path)] if beside else [], rest)
            if len(rest) and subfolders is None:
                subfolders = files.subfolders(home)
            search.look_in([_joined(name, path) for name in subfolders or ()], rest)
    return search.result()


class _Search:
    """What is found of the images of a table, folder by folder."""

    def __init__(self, home: str, table: Table, names: pa.Array) -> None:
        self._home, self._table, self._names = home, table, names
        self._listings: dict[str, _Listing] = {}
        self._numbers: dict[str, int] = {}  # of folders
        self.places = np.zeros(len(names), np.int32)
        self._found = np.zeros(len(names), bool)
        self.outside = np.zeros(len(names), bool)
        self._hits: list[tuple[np.ndarray, pa.Array]] = []  # rows, and their files

    def number(self, folder: str) -> int:
        """The number of a folder below `home`."""
        return self._numbers.setdefault(folder, len(self._numbers))

    def look_in(self, folders: Sequence[str], rows: np.ndarray) -> np.ndarray:
        """Looks for rows in some folders; returns those that are in none. UserError for two."""
        if not len(rows):
            return rows
        wanted = pc.utf8_normalize(self._names.take(pa.array(rows)), "NFC")
        for folder in folders:
            if folder not in self._listings:
                self._listings[folder] = _Listing.read(_spelt(self._home, folder))
            listing = self._listings[folder]
            at, several = listing.find(wanted)
            is_here = at >= 0
            if len(doubtful := rows[is_here & (several | self._found[rows])]):
                table, row = self._table, int(doubtful[0])
                raise UserError(
                    f"{table.path}, line {table.lines[row]:,}: {table.images[row]} may be several "
                    f"files, one of them in {_spelt(self._home, folder)}. Write paths with "
                    "folders and extensions into the table."
                )
            here = rows[is_here]
            self._found[here] = True
            self.places[here] = self.number(folder)
            self._hits.append((here, listing.names.take(pa.array(at[is_here]))))
        return rows[~self._found[rows]]

    def result(self) -> Found:
        """The files of all rows."""
        lost = np.flatnonzero(~self._found), self._names.filter(pa.array(~self._found))
        rows, names = zip(*self._hits, lost, strict=True)
        order = pa.array(np.argsort(np.concatenate(rows)))
        folders = list(self._numbers)
        return Found(
            [_spelt(self._home, folder) for folder in folders],
            [folder + "/" * (folder not in ("", "/")) for folder in folders],
            self.places,
            pa.concat_arrays(names).take(order),
            self._found,
            self.outside,
        )


def _joined(*folders: str) -> str:
    return "/".join(folder for folder in folders if folder)


def _spelt(home: str, folder: str) -> str:
    """A folder below `home` as the file system has it: names may be in Unicode's other form."""
    path = folder if folder[:1] == "/" else files.join(home, *[folder] * bool(folder))
    if not folder or folder == "/" or files.is_remote(path) or os.path.isdir(path):
        return path
    above, _, name = folder.rpartition("/")
    above = _spelt(home, above) if above or folder[:1] != "/" else "/"
    try:
        same = [entry for entry in os.listdir(above) if normal(entry) == normal(name)]
    except OSError:
        same = []
    return files.join(above, *same[:1] or [name])
