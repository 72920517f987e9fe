"""Tables of images and labels: columns of CSV, TSV, JSON lines or Parquet; the files they name.

A table has a column of files, one of labels, and perhaps one of splits. Delimiters (`,`, `;`, tab,
`|`) and encodings (UTF-8, UTF-16 with a mark, else Latin-1) are recognised. Rows are columns of
Arrow and NumPy: a table of millions of rows does not make an object for each.
"""

import codecs
import contextlib
import csv
import fnmatch
import functools
import gzip
import io
import itertools
import json
import os
import posixpath
import re
from collections.abc import Iterator, Sequence
from typing import IO, Any, NamedTuple, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from vit_jax.core.class_names import normal
from vit_jax.core.errors import UserError, nearest, reading
from vit_jax.core.image_files import EXTENSIONS, UNKNOWN_EXTENSIONS, extension
from vit_jax.data import files
from vit_jax.data.source import row_offsets
from vit_jax.data.sources.split_names import KEYWORDS, only_split, splits_said

T = TypeVar("T")

TABLES = (".csv", ".tsv", ".jsonl", ".parquet", ".csv.gz", ".tsv.gz")
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
_MARKS = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_DELIMITERS = ",;\t|"
_WHOLE = re.compile(r"-?[0-9]+")
_SEPARATORS = "|;,"  # that labels may have between them
_TEXT = pa.large_string()
_ONES = pa.array(["1", "1.0", "true"], _TEXT)  # of a column for one class
_ZEROS = pa.array(["", "0", "0.0", "false"], _TEXT)
_NO_LABEL = pa.array(["nan", "NaN", "<NA>"], _TEXT)  # as pandas writes it
_URL = r"^[A-Za-z][A-Za-z0-9+.-]*://"
_IMAGES = frozenset({*EXTENSIONS, *UNKNOWN_EXTENSIONS})
_CHUNK = 2**16  # rows that are Python's for a moment
_MOST_IN_LINE = 2**24  # characters


def is_table(path: str) -> bool:
    """Returns whether a path is named like a table that is read."""
    return path.lower().endswith(TABLES)


class Column(NamedTuple):
    """A column to read: by `name`, or by a usual name; `option` names it instead, for messages.

    That of labels may be several of 0 and 1, one for each class: `cat,dog`, or `is_*`.
    """

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
    labels: pa.LargeListArray  # [n] lists of text, never empty
    several: bool  # whether a row may have several labels, or none
    splits: pa.Array | None  # [n] text
    split_column: str
    lines: np.ndarray  # int64 [n]: lines of the file, or rows of Parquet
    bad_lines: Sequence[int]  # with another number of fields than the first line
    note: str  # which columns are read, and what else a person should know


def read_table(path: str, columns: Columns) -> Table:
    """Reads a table."""
    if columns.separator.name == "":
        rule = "is empty: give what stands between labels, or none where a cell is one label."
        raise UserError(rule, field=columns.separator.option)
    return (_parquet if extension(path) == ".parquet" else _text)(path, columns)


def _trimmed(cells: pa.Array) -> pa.Array:
    return pc.utf8_normalize(pc.fill_null(pc.utf8_trim_whitespace(cells), ""), "NFC")


def _without_fractions(cells: pa.Array) -> pa.Array:
    """Whole numbers that pandas wrote as 3.0, since a cell of their column was empty, as 3."""
    given = cells.filter(pc.not_equal(cells, ""))
    if not len(given) or not pc.all(pc.match_substring_regex(given, r"^-?\d+\.0$|^nan$")).as_py():
        return cells
    return pc.replace_substring(cells, ".0", "")


def _splits_of_flags(cells: pa.Array) -> pa.Array:
    """`val` and `train` for a column of yes and no; other values stay the names of splits."""
    encoded = pc.utf8_lower(cells).dictionary_encode()
    values = encoded.dictionary.to_pylist()
    if not _FLAGS.keys() >= set(values):
        return cells
    return pa.array([_FLAGS[value] for value in values], _TEXT).take(encoded.indices)


def _unsplit(labels: pa.Array, option: str) -> str:
    """A note on labels that look like several in one cell; "" if none do."""
    names = set(labels.unique().to_pylist())
    for separator, name in itertools.product(_SEPARATORS, sorted(names)):
        parts = [part.strip() for part in name.split(separator)]
        if len(parts) > 1 and names.issuperset(parts):
            return f". {name!r} is one class; for several labels set {option}={separator!r}"
    return ""


def check_cells(table: Table) -> None:
    """Refuses rows that name no image."""
    _refuse(table.path, table.bad_lines, "another number of fields than the first line has")
    refuse_rows(table, pc.equal(table.images, ""), "names no image")


def refuse_rows(table: Table, rows: Any, what: str) -> None:
    """UserError that names the first of some rows, bool [n]; none is fine."""
    places = np.flatnonzero(rows)
    cell = table.images[int(places[0])].as_py() if len(places) else ""
    _refuse(table.path, table.lines[places], f"{cell} {what}".lstrip())


def _refuse(path: str, lines: Sequence[int] | np.ndarray, what: str) -> None:
    if len(lines):
        raise UserError(f"{path}, line {lines[0]:,}: {what} (such rows: {len(lines):,}).")


class _Chosen(NamedTuple):
    """The columns that are read, by name."""

    image: str
    labels: list[str]
    split: str | None
    is_one_hot: bool  # whether each column of labels has 0 and 1 for one class
    others: list[str]

    @classmethod
    def choose(cls, path: str, names: Sequence[str], columns: Columns) -> "_Chosen":
        """Chooses of the columns of a table. UserError."""
        image = _column(
            path, names, columns.image, "the files of the images", _IMAGE_COLUMNS, _ID_COLUMNS
        )
        by_rank = [(name,) for name in _SPLIT_COLUMNS]
        split = _column(path, names, columns.split, "their splits", *by_rank)
        rest = [name for name in names if name not in (image, split)]
        label, patterns = columns.label, [columns.label.name]
        is_one_hot = label.name is not None and label.name not in names
        if label.name is not None and is_one_hot:
            parts = [part.strip() for part in label.name.split(",")]
            # Of a name, or where no column matches, itself.
            matches = ([p] if p in names else fnmatch.filter(rest, p) or [p] for p in parts)
            patterns = list(itertools.chain.from_iterable(matches))
        hint = f", or several of 0 and 1 with {label.option}={','.join(rest[:3])}"
        labels = [
            _column(
                path, names, label._replace(name=pattern), "their classes", _LABEL_COLUMNS,
                hint=hint * (len(rest) > 1),
            )
            for pattern in dict.fromkeys(patterns)
        ]  # fmt: skip
        known = [name for name in labels if name is not None]
        others = [name for name in rest if name not in known]
        return cls(image or "", known, split, is_one_hot, others)

    def names(self) -> list[str]:
        """The names of all of them."""
        return [name for name in (self.image, *self.labels, self.split) if name is not None]

    def note(self, path: str) -> str:
        """A note on which columns are read."""
        note = f"{os.path.basename(path)}: images of the column {self.image!r}"
        for title, names in (
            (", labels of", self.labels),
            (", splits of", [self.split] if self.split is not None else []),
            ("; not read:", self.others),
        ):
            more = " ..." if len(names) > 10 else ""
            note += f"{title} {', '.join(map(repr, names[:10]))}{more}" if names else ""
        return note

    def table(
        self,
        path: str,
        stored: pa.Table,
        lines: np.ndarray,
        separator: Column,
        bad_lines: Sequence[int] = (),
        remark: str = "",
    ) -> Table:
        """The rows of a table whose cells are `stored` as the file has them."""
        labels = pa.nulls(len(lines), pa.large_list(_TEXT))
        if self.is_one_hot:
            labels = self._one_hot(path, stored, lines)
        elif self.labels:
            labels = _as_text(path, stored, self.labels[0], lists=True)
        if separator.name is not None and not pa.types.is_large_list(labels.type):
            is_space = separator.name.isspace()
            split = pc.utf8_split_whitespace if is_space else pc.split_pattern
            labels = split(labels, *[separator.name] * (not is_space))
        flat, offsets = labels, np.arange(len(lines) + 1)
        several = isinstance(labels, (pa.ListArray, pa.LargeListArray))
        if several:
            sizes = labels.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
            flat, offsets = labels.flatten(), row_offsets(sizes)
        flat = _without_fractions(_trimmed(flat))
        kept = pc.and_(pc.not_equal(flat, ""), pc.invert(pc.is_in(flat, _NO_LABEL)))
        ends = row_offsets(kept.to_numpy(zero_copy_only=False))
        flat, splits = flat.filter(kept), None
        if self.split is not None:
            splits = _without_fractions(_trimmed(_as_text(path, stored, self.split)))
            if self.split.lower() in _FLAG_COLUMNS:
                splits = _splits_of_flags(splits)
        return Table(
            path=path,
            images=_trimmed(_as_text(path, stored, self.image)),
            labels=pa.LargeListArray.from_arrays(ends[offsets], flat),
            several=several,
            splits=splits,
            split_column=self.split or "",
            lines=lines,
            bad_lines=bad_lines,
            note=self.note(path) + remark + ("" if several else _unsplit(flat, separator.option)),
        )

    def _one_hot(self, path: str, table: pa.Table, lines: np.ndarray) -> pa.Array:
        is_one = np.zeros((len(lines), len(self.labels)), bool)
        for number, name in enumerate(self.labels):
            cells = pc.utf8_lower(_trimmed(_as_text(path, table, name)))
            is_one[:, number] = pc.is_in(cells, _ONES).to_numpy(zero_copy_only=False)
            others = ~is_one[:, number] & ~pc.is_in(cells, _ZEROS).to_numpy(zero_copy_only=False)
            first = "".join(cells.filter(pa.array(others))[:1].to_pylist())
            what = f"{name!r} has {first!r}, not 0, 1, true, false or an empty cell"
            _refuse(path, lines[others], what)
        names = pa.array(self.labels, _TEXT).take(pa.array(np.nonzero(is_one)[1]))
        return pa.LargeListArray.from_arrays(row_offsets(is_one.sum(axis=1)), names)


def _column(
    path: str,
    names: Sequence[str],
    column: Column,
    what: str,
    *known: Sequence[str],
    hint: str = "",
) -> str | None:
    """The name of the column that is wanted, or of the only one with a known name."""
    listed = ", ".join(map(repr, names[:20])) or "none"
    if column.name is not None:
        matches = [name for name in names if name == column.name]
    else:
        by_name = {number: name.lower().replace(" ", "_") for number, name in enumerate(names)}
        ranks = ([names[n] for n, name in by_name.items() if name in some] for some in known)
        matches = next(filter(None, ranks), [])
    if len(matches) == 1:
        return matches[0]
    if not matches and column.name is None and not column.needed:
        return None
    there = f"the columns {' and '.join(map(repr, matches))}" if matches else "no column"
    rule = f"has {there} for {what}, of {listed}: name one with {column.option}=NAME{hint}."
    if column.name is not None:
        rule = f"has no column {column.name!r}. {nearest(column.name, names)}"
    raise UserError(rule, field=path)


def _opened(path: str) -> IO[bytes]:
    with reading(path):
        data = files.read(path) if files.is_remote(path) else None
        file = open(path, "rb") if data is None else io.BytesIO(data)  # noqa: SIM115, callers close
    return cast("IO[bytes]", gzip.open(file) if path.lower().endswith(".gz") else file)


def _encoding(file: IO[bytes]) -> str:
    """UTF-16 where the file has its mark, else UTF-8 or Windows' Latin-1. ValueError: no text."""
    encoding = _MARKS.get(file.read(2), "utf-8-sig")
    file.seek(0)
    texts = codecs.iterdecode(iter(lambda: file.read(_CHUNK), b""), encoding)
    try:
        if any("\0" in text for text in texts):
            raise ValueError("not text: a null character")
    except UnicodeError:
        encoding = "cp1252"
    file.seek(0)
    return encoding


def _lines(text: io.TextIOWrapper) -> Iterator[str]:
    while line := text.readline(_MOST_IN_LINE):
        if len(line) == _MOST_IN_LINE:
            raise ValueError(f"it has at least {_MOST_IN_LINE:,} characters")
        yield line


def _num_fields(line: str, delimiter: str) -> int:
    try:
        return len(next(csv.reader([line], delimiter=delimiter), []))
    except csv.Error:  # a field of more characters than Python allows
        return 0


def _fields(
    path: str, lines: Iterator[str], bad_lines: list[int]
) -> Iterator[tuple[int, list[str]]]:
    """(first line, fields) of each row; of one that is not as wide as the first a bad line.

    csv, not Arrow, which reads quotation marks that are not closed, or inside a field, silently.
    """
    line, width = 0, 0
    try:
        first = next(lines, "")
        is_tsv = path.lower().removesuffix(".gz").endswith(".tsv")
        delimiter = "\t" if is_tsv else max(_DELIMITERS, key=lambda one: _num_fields(first, one))
        reader = csv.reader(itertools.chain([first], lines), delimiter=delimiter, strict=True)
        for row in reader:
            width = width or len(row)
            if row and len(row) == width and (row[0] or any(map(str.strip, row))):
                yield line + 1, row
            elif any(map(str.strip, row)):
                bad_lines.append(line + 1)
            line = reader.line_num
    except (ValueError, csv.Error):
        with reading(f"{path}, line {line + 1:,},"):
            raise


def _objects(path: str, lines: Iterator[str]) -> Iterator[tuple[int, list[Any]]]:
    """(line, values) of each line of JSON that is not empty; first the names of the values.

    These are those of the first `_CHUNK` lines. json, not Arrow, which lists in lists crash.
    """

    def parse() -> Iterator[tuple[int, dict[str, Any]]]:
        number = 0
        try:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    row = json.loads(line)
                    if not isinstance(row, dict):
                        raise ValueError("it is not a JSON object")
                    yield number, row
        except (ValueError, RecursionError):
            with reading(f"{path}, line {number:,},"):
                raise

    rows = parse()
    chunk = list(itertools.islice(rows, _CHUNK))
    names = list(dict.fromkeys(name for _, row in chunk for name in row))
    yield 0, names
    for number, row in itertools.chain(chunk, rows):
        yield number, [row.get(name) for name in names]


def _text(path: str, columns: Columns) -> Table:
    """The columns of a CSV, TSV or JSON lines, `_CHUNK` rows at a time."""
    is_json, bad_lines = extension(path) == ".jsonl", list[int]()
    with _opened(path) as file:
        with reading(path):
            encoding = "utf-8-sig" if is_json else _encoding(file)
        texts = _lines(io.TextIOWrapper(file, encoding, newline=""))
        rows = _objects(path, texts) if is_json else _fields(path, texts, bad_lines)
        names = [name.strip() for name in next(rows, (1, []))[1]]
        chosen = _Chosen.choose(path, names, columns)
        places = {name: names.index(name) for name in chosen.names()}
        kind = None if is_json else _TEXT
        lines, chunks = list[np.ndarray](), list[pa.Table]()
        while (chunk := list(itertools.islice(rows, _CHUNK))) or not chunks:
            lines.append(np.array([line for line, _ in chunk], np.int64))
            with reading(path):
                cells = {n: pa.array([row[p] for _, row in chunk], kind) for n, p in places.items()}
            chunks.append(pa.table(cells))
    remark = f". It is not UTF-8, and read as {encoding}" if encoding == "cp1252" else ""
    with reading(path):
        table = pa.concat_tables(chunks, promote_options="permissive")
    numbers = np.concatenate(lines)
    return chosen.table(path, table, numbers, columns.separator, bad_lines, remark)


def _parquet(path: str, columns: Columns) -> Table:
    with reading(path):
        source = pa.BufferReader(files.read(path)) if files.is_remote(path) else path
        file = pq.ParquetFile(source)
    with file:
        chosen = _Chosen.choose(path, file.schema_arrow.names, columns)
        with reading(path):
            table = file.read(chosen.names())
    return chosen.table(path, table, np.arange(1, len(table) + 1), columns.separator)


def _as_text(path: str, table: pa.Table, name: str, *, lists: bool = False) -> pa.Array:
    """Text of any column; with `lists`, lists of text where its cells are lists. UserError."""
    cells = table[name].combine_chunks()
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
        rule = f"has {kind} in the column {name!r}, not text or numbers."
        cure = f"For bytes of images: vit-jax prepare records --source={path}"
        raise UserError(rule, field=path, cure=cure) from error


def class_order(labels: Sequence[str]) -> list[str]:
    """Names of classes in their order: whole numbers by their size, others as text."""
    in_text = sorted(labels)
    try:
        return sorted(in_text, key=int) if all(map(_WHOLE.fullmatch, in_text)) else in_text
    except ValueError:
        return in_text


# --- the files


class Found(NamedTuple):
    """The places of a table's images."""

    folders: list[str]
    prefixes: list[str]  # "" for the table's folder, else with a slash behind
    places: np.ndarray  # int32 [n]: the folder of each
    names: pa.Array  # [n] text
    found: np.ndarray  # bool [n]
    outside: np.ndarray  # bool [n]: a path that leaves the table's folder by ".."


def _files_of(folder: str) -> dict[str, str | None]:
    """The files of a folder by their composed names, and images by these without extension.

    None for several images of one such name; {} for a remote folder that is not there.
    """
    names: list[str] = []
    with reading(folder), contextlib.suppress(FileNotFoundError):
        names = files.file_names(folder)
    # A name that is no text is one that no table can have.
    names = [name for name in names if name == name.encode(errors="ignore").decode()]
    stems: dict[str, str | None] = {}
    for name in names:
        stem, kind = os.path.splitext(normal(name))
        if kind.lower() in _IMAGES and not name.startswith("."):
            stems[stem] = None if stem in stems else name
    return stems | {normal(name): name for name in names}


def find_files(home: str, table: Table, *, beside: str = "") -> Found:
    """The images of a table in the folder `home`: at their paths, else in a folder beside it.

    `beside` is the folder that is looked into before the others. A path that leaves the folder by
    ".." is not followed. UserError for an address, and for an image that may be two.
    """
    is_address = pc.match_substring_regex(table.images, _URL)
    refuse_rows(table, is_address, "is an address, and images are read from a disk")
    cells = pc.replace_substring(table.images, "\\", "/")
    inside = pc.replace_substring_regex(cells, r"[^/]*$", "").dictionary_encode()
    codes = inside.indices.to_numpy()
    ends = np.cumsum(np.bincount(codes, minlength=len(inside.dictionary)))
    by_folder = np.split(np.argsort(codes, kind="stable"), ends[:-1])
    search = _Search(home, table, pc.replace_substring_regex(cells, r"^.*/", ""))
    # Without rows there is one part, of no folder.
    for written, rows in zip(inside.dictionary.to_pylist(), by_folder, strict=False):
        path = posixpath.normpath(written) if written else ""
        path = "" if path == "." else path
        search.places[rows] = search.number(path)
        if path.split("/")[0] == "..":
            search.outside[rows] = True
            continue
        rest = search.look_in([path], rows)
        if len(rest) and path[:1] != "/":
            rest = search.look_in([_joined(beside, path)] if beside else [], rest)
            search.look_in(search.folders_beside(path) if len(rest) else [], rest)
    return search.result()


def with_splits_in_paths(table: Table, found: Found, home: str, *, cure: str) -> Table:
    """The table with the splits that its files' paths say, as splits_in_paths, without a column.

    Nothing is said where all say the same split, or no more than `train`, which may be a class.
    """
    if table.splits is not None:
        return table
    above = os.path.abspath(home) + "/"
    said = splits_said([prefix.removeprefix(above) for prefix in found.prefixes])[found.places]
    if not said.any():
        said = splits_said(found.names)
    if not said[:, 1:].any() or ((said == said[0]).all() and said[0].sum() == 1):
        return table
    numbers, listed = only_split(
        said,
        lambda row: found.prefixes[found.places[row]] + found.names[row].as_py(),
        field=table.path,
        cure=f"Add a column `split`{cure}.",
    )
    splits = pa.array(list(KEYWORDS), _TEXT).take(pa.array(numbers))
    note = f"{table.note}; splits by the paths of files, as datasets reads them: {listed}"
    return table._replace(splits=splits, split_column="the paths", note=note)


class _Search:
    """A search for the images of a table, folder by folder, each of which is listed once."""

    def __init__(self, home: str, table: Table, names: pa.Array) -> None:
        self._home, self._table, self._names = home, table, names
        self._images = functools.cache(_files_of)
        self._subfolders = functools.cache(_subfolders_of)
        self._numbers: dict[str, int] = {}  # of folders
        self.places = np.zeros(len(names), np.int32)
        self.found = np.zeros(len(names), bool)
        self.outside = np.zeros(len(names), bool)
        self._files: list[str | None] = [None] * len(names)

    def number(self, folder: str) -> int:
        """The number of a folder below `home`."""
        return self._numbers.setdefault(folder, len(self._numbers))

    def look_in(self, folders: Sequence[str], rows: np.ndarray) -> np.ndarray:
        """Looks for rows in some folders; returns those that are in none. UserError for two."""
        for folder in folders if len(rows) else ():
            if (path := self._path(folder)) is None:
                continue
            listing, table = self._images(path), self._table
            for start in range(0, len(rows), _CHUNK):
                some = rows[start : start + _CHUNK]
                names = pc.utf8_normalize(self._names.take(some), "NFC").to_pylist()
                for row, name in zip(some.tolist(), names, strict=True):
                    if name not in listing:
                        continue
                    if listing[name] is None or self.found[row]:
                        what = f"{table.images[row]} may be several files, one in {path}"
                        _refuse(table.path, table.lines[[row]], f"{what}: write whole paths")
                    self.found[row], self._files[row] = True, listing[name]
                    self.places[row] = self.number(folder)
        return rows[~self.found[rows]]

    def folders_beside(self, path: str) -> list[str]:
        """The folders of this path in the subfolders of `home`, where these hold its beginning."""
        first = normal(path.split("/", maxsplit=1)[0])
        return [
            _joined(name, path)
            for name in self._subfolders(self._home).values()
            if not first or first in self._subfolders(files.join(self._home, name))
        ]

    def _path(self, folder: str) -> str | None:
        """The folder as it is spelt there, maybe in Unicode's other form; None: it is not there."""
        path = "/" if folder[:1] == "/" else self._home
        for name in filter(None, folder.split("/")):
            written = files.join(path, name)
            if files.is_remote(path) or os.path.isdir(written):
                path = written
            elif actual := self._subfolders(path).get(normal(name)):
                path = files.join(path, actual)
            else:
                return None
        return path

    def result(self) -> Found:
        """The files of all rows."""
        folders = list(self._numbers)
        written = [f if f[:1] == "/" else _joined(self._home.rstrip("/"), f) for f in folders]
        return Found(
            [self._path(folder) or path for folder, path in zip(folders, written, strict=True)],
            [folder + "/" * (folder not in ("", "/")) for folder in folders],
            self.places,
            pc.coalesce(pa.array(self._files, _TEXT), self._names),
            self.found,
            self.outside,
        )


def _subfolders_of(folder: str) -> dict[str, str]:
    """The names of the subfolders by their composed form; {} if it is not there."""
    with contextlib.suppress(OSError):
        return {normal(name): name for name in reversed(files.subfolders(folder))}
    return {}


def _joined(*folders: str) -> str:
    return "/".join(folder for folder in folders if folder)


def first_of_same(folders: Sequence[str], prefixes: Sequence[str]) -> np.ndarray:
    """The number of the folder that stands for each, int32 [n]: one for all links to a folder.

    It is the first by its prefix, and one below the table's folder if there is one.
    """
    real = [path if files.is_remote(path) else os.path.realpath(path) for path in folders]
    order = sorted(range(len(real)), key=lambda i: (prefixes[i][:1] == "/", prefixes[i]))
    first = {real[i]: i for i in reversed(order)}
    return np.array([first[path] for path in real], np.int32)
