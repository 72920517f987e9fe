"""Lists of images with their labels, such as those of JFT: JSON lines, Parquet, CSV, TSV.

An entry of JSON lines or Parquet has the fields
- `image`, or the name in --image_field: a path, relative to the folder of the list or to
  --images_root; or the file's bytes (in JSON as base64) as `{"bytes": ...}`, as in Hugging Face's
  data sets;
- `labels`, or the name in --label_field: classes, as numbers or names;
- `weights`: of the labels, optional;
- `id`: unique in the set; without it, the path or the position in the list. Where lists lie in
  several folders, the list's folder comes before the path.

A table, CSV or TSV, has a column of files and one of classes: data/sources/table_file.py reads it,
for training too.
"""

import base64
import binascii
import errno
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import pyarrow.parquet as pq

from vit_jax.core.errors import UserError, nearest, reading
from vit_jax.data.sources import table_file
from vit_jax.data.sources.table_file import Column, Columns, Table
from vit_jax.tools.prepare import entries
from vit_jax.tools.prepare.collection import (
    Collection,
    CollectionRequest,
    ImageRow,
    Labels,
    Part,
    RowAndBytes,
    refuse_source,
)
from vit_jax.tools.prepare.entries import BadLabelError, Reading, SourceFile
from vit_jax.tools.prepare.faults import FAULTS, TURNED
from vit_jax.tools.prepare.image_folder import PassedOver, parts_of_folder
from vit_jax.tools.prepare.tars import MAX_MEMBER_BYTES

TABLES = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
SUFFIXES = (".jsonl", ".ndjson", ".json", ".parquet", *TABLES)
MAX_LINE_BYTES = 64 * 2**20
MAX_ID_LENGTH = 4096
LEAST_PART_BYTES = 2**20
LINES_PER_PART = 1000  # about
ROWS_AT_ONCE = 16  # of Parquet
_NO_SUCH_FILE = (
    *(errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM),
    *(errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL),
)


def collection(request: CollectionRequest) -> Collection:
    files = entries.source_files(request.source, SUFFIXES)
    tables = [file for file in files if file.path.name.lower().endswith(TABLES)]
    if tables:
        names, parts, notes, several = _collect_tables(request, files, tables)
    else:
        if request.split_field is not None or request.label_separator is not None:
            raise UserError("are for CSV and TSV.", field="--split_field and --label_separator")
        several = request.multi_label is not False
        field = request.label_field or ("labels" if several else "label")
        parquet = [file.path for file in files if file.path.suffix.lower() == ".parquet"]
        known = entries.classes_of_lists(request, field, parquet)
        images_root = _images_root(request)
        names, parts = known.names, []
        files, notes = entries.split_by_names(files, request.source)
        for file in files:
            folder, root = _folder(file, images_root), str(images_root or file.path.parent)
            image_field = request.image_field or "image"
            reading = Reading(known, field, several, root, folder, image_field)
            of_file = _parts_of_parquet if file.path in parquet else _parts_of_json
            parts += of_file(file, reading)
    return Collection(
        name="records",
        description="Images of lists.",
        class_names=names,
        parts=parts,
        multi_label=several,
        notes=notes,
        policy=TURNED,
    )


def _images_root(request: CollectionRequest) -> Path | None:
    if request.images_root is None:
        return None
    images_root = Path(request.images_root).expanduser().absolute()
    with reading("--images_root", request.images_root):
        os.listdir(images_root)
    return images_root


def _folder(file: SourceFile, images_root: Path | None) -> str:
    """The start of names that paths in a list become; "" if they are unique without."""
    return "" if images_root else os.path.dirname(file.name)


def _parts_of_json(file: SourceFile, reading: Reading) -> list[Part]:
    with open(file.path, "rb") as opened:
        step = max(LINES_PER_PART * len(opened.readline(MAX_LINE_BYTES)), LEAST_PART_BYTES)
    size, path, parts = file.path.stat().st_size, str(file.path), list[Part]()
    for start in range(0, size, step):
        nbytes = min(step, size - start)
        name = f"{file.name}@{start}"
        parts.append(
            Part(name, "json_lines", path, start, nbytes, split=file.split, reading=reading)
        )
    return parts


def _parts_of_parquet(file: SourceFile, way: Reading) -> list[Part]:
    path = str(file.path)
    with reading(path), pq.ParquetFile(path) as opened:
        names, groups = opened.schema_arrow.names, opened.num_row_groups
    for flag, name in (("--image_field", way.image_field), ("--label_field", way.label_field)):
        if name not in names:
            rule = f"is not a column of {path}. {nearest(name, names)}"
            raise UserError(rule, field=flag, value=name)
    return [
        Part(f"{file.name}@{k}", "parquet", path, offset=k, split=file.split, reading=way)
        for k in range(groups)
    ]


def json_lines(part: Part) -> Iterator[RowAndBytes]:
    """The images of the lines that begin in the part."""
    list_name = part.name.rpartition("@")[0]
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
    with reading(part.path), open(part.path, "rb") as file:
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
    while file.tell() < stop and not file.readline(2**20).endswith(b"\n"):
        pass


def parquet_rows(part: Part) -> Iterator[RowAndBytes]:
    for number, entry in enumerate(_parquet_entries(part)):
        yield _image(entry, part, ImageRow(f"{part.name}.{number}", part.path))


def _parquet_entries(part: Part) -> Iterator[dict[str, Any] | None]:
    """The rows of a row group; None for one that is not text."""
    assert part.reading is not None
    field = part.reading.label_field
    wanted = (part.reading.image_field, field, "weights", "id")
    names = entries.names_in_parquet(part.path, field)
    with reading(part.path), pq.ParquetFile(part.path) as file:
        columns = [name for name in wanted if name in file.schema_arrow.names]
        for batch in file.iter_batches(ROWS_AT_ONCE, row_groups=[part.offset], columns=columns):
            for k in range(len(batch)):
                try:
                    entry = batch.slice(k, 1).to_pylist()[0]
                    if names:
                        entry[field] = _label_names(entry[field], names)
                except UnicodeDecodeError:
                    entry = None
                yield entry


def _label_names(labels: object, names: Sequence[str]) -> object:
    if isinstance(labels, list):
        return [_label_names(label, names) for label in labels]
    return names[labels] if isinstance(labels, int) and 0 <= labels < len(names) else labels


def _image(entry: object, part: Part, row: ImageRow) -> RowAndBytes:
    reading = part.reading
    assert reading is not None
    bad_entry = row._replace(faults=("bad_entry",)), None
    image = entry.get(reading.image_field) if isinstance(entry, Mapping) else None
    if isinstance(image, Mapping):
        image = image.get("path") if image.get("bytes") is None else _decoded_bytes(image["bytes"])
    if not isinstance(entry, Mapping) or not isinstance(image, str | bytes):
        return bad_entry
    name = entry.get("id")
    if name is None:
        name = os.path.join(reading.folder, image) if isinstance(image, str) else row.name
    if type(name) not in (str, int) or not 0 < len(str(name)) <= MAX_ID_LENGTH:
        return bad_entry
    row = row._replace(name=str(name))
    try:
        labels = reading.classes.labels(entry.get(reading.label_field), several=reading.several)
        label_weights = entries.weights(entry.get("weights"), labels)
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
    except (OSError, ValueError) as error:  # ValueError: a zero in the name
        if isinstance(error, OSError) and error.errno not in _NO_SUCH_FILE:
            with reading(path):
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


def _collect_tables(
    request: CollectionRequest, files: Sequence[SourceFile], tables: Sequence[SourceFile]
) -> tuple[Sequence[str], list[Part], Sequence[str], bool]:
    if len(files) > len(tables):
        other = next(file.path for file in files if file not in tables)
        rule = f"has tables ({tables[0].path}) and other lists ({other}): name those of one kind."
        refuse_source(request.source, rule)
    columns = Columns(
        Column("--image_field", request.image_field),
        Column("--label_field", request.label_field),
        Column("--split_field", request.split_field, needed=request.split_field is not None),
        Column("--label_separator", request.label_separator),
    )
    read = [table_file.read_table(str(file.path), columns) for file in tables]
    several = any(table.several for table in read)
    if request.multi_label and not several:
        rule = 'needs, for a CSV, what is between labels, as --label_separator="|".'
        raise UserError(rule, field="--multi_label")
    unsplit = [file for file, table in zip(tables, read, strict=True) if table.splits is None]
    in_splits, notes = entries.split_by_names(unsplit, request.source)
    by_path = {file.path: file for file in (*tables, *in_splits)}
    images_root = _images_root(request)
    roots = [str(images_root or file.path.parent) for file in tables]
    found = [table_file.find_files(root, table) for root, table in zip(roots, read, strict=True)]
    read = [
        table if file.split else table_file.with_splits_in_paths(table, images, root, cure="")
        for file, table, images, root in zip(by_path.values(), read, found, roots, strict=True)
    ]
    notes = (*notes, *(f"{table.note}." for table in read))
    if request.classes is not None or request.num_classes is not None:
        known = entries.classes(request)
        names: Sequence[str] = known.names
        label: Callable[[str], int] = known.label_in_text
    else:
        labels = {name for table in read for name in table.labels.values.unique().to_pylist()}
        names = table_file.class_order(list(labels))
        label = {name: number for number, name in enumerate(names)}.__getitem__
        more = " ..." if len(names) > 5 else ""
        notes += (f"The classes are the labels, sorted: {', '.join(names[:5])}{more}.",)
    parts = [
        part
        for file, table, images in zip(by_path.values(), read, found, strict=True)
        for part in _parts_of_table(file, table, images, label, images_root)
    ]
    # What is left out comes last.
    return names, sorted(parts, key=lambda part: part.reader in FAULTS), notes, several


def _parts_of_table(
    file: SourceFile,
    table: Table,
    found: table_file.Found,
    label: Callable[[str], int],
    images_root: Path | None,
) -> list[Part]:
    root, folder = images_root or file.path.parent, _folder(file, images_root)
    above = Path(str(root).removesuffix(folder))  # names are relative to it
    real_root = os.path.realpath(root)
    places = table_file.first_of_same(found.folders, found.prefixes)[found.places]
    labels: dict[str, Labels] = {}
    first: dict[str, int] = {}
    splits: dict[str, list[str]] = {}
    conflicts: list[tuple[int, int]] = []
    left_out = PassedOver(root)
    for line in table.bad_lines:
        left_out.add("bad_entry", f"{file.name}, line {line}")
    texts, split_of = table.labels.to_pylist(), _splits(file, table)
    for row, (cell, name) in enumerate(
        zip(table.images.to_pylist(), found.names.to_pylist(), strict=True)
    ):
        path = os.path.relpath(os.path.join(found.folders[places[row]], name), root)
        path = os.path.join(folder, path)
        fault = "" if cell else "bad_entry"
        if not fault and not found.found[row]:
            fault = "outside" if found.outside[row] else "missing"
        if not fault:
            _, fault = _regular_file(real_root, str(above / path))
        if fault:
            left_out.add(fault, cell or f"{file.name}, line {table.lines[row]}")
        elif path in first:
            if sorted(texts[first[path]]) != sorted(texts[row]):
                conflicts.append((first[path], row))
            left_out.add("same_name", path)
        elif not texts[row]:
            left_out.add("no_label", path)
        else:
            first[path] = row
            try:
                labels[path] = tuple(sorted({label(text) for text in texts[row]}))
                splits.setdefault(split_of[row], []).append(path)
            except BadLabelError:
                left_out.add("bad_label", path)
    if conflicts:
        one, other = conflicts[0]
        rule = f"has {len(conflicts):,} rows that give an image another label than a row before, as"
        rule += f" line {table.lines[other]} than {table.lines[one]}: {table.images[one]}."
        cure = "Several labels stand in one cell, with --label_separator."
        raise UserError(rule, field=table.path, cure=cure)
    parts = []
    for split, names in splits.items():
        title = f"{file.name}, {split}" if split else file.name
        parts += parts_of_folder(title, above, names, split or file.split, labels)
    return [*parts, *left_out.parts()]


def _splits(file: SourceFile, table: Table) -> list[str]:
    splits = [""] * len(table.lines) if table.splits is None else table.splits.to_pylist()
    for split in sorted({*splits} - {""}):
        if file.split is not None or not re.fullmatch(entries.SPLIT_NAME, split):
            rule = f"({table.split_column!r}) has {split!r} in {table.path}, which is no split"
            cure = f"--source puts the file into {file.split}: leave one out." * bool(file.split)
            raise UserError(f"{rule}.", field="--split_field", cure=cure)
    return splits
