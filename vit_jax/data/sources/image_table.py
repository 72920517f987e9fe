"""Images whose labels stand in a table with a column of files and one of labels (TABLES).

    labels.csv            one table, of which the column `split` or `fold` says where an image is,
                          or one in ten images is `val`, as in image_folder.py
    train.csv, val.csv    or a table for each split, in one folder

Files are named from the table's folder, with or without their extension and the folder beside the
table that they are in, such as `images/`. Examples are in the order of the SHA-256 of their paths:
the order of the rows does not matter, and a slice of a split holds all classes.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from vit_jax.core.class_names import normal, printable
from vit_jax.core.errors import UnknownSplit, UserError, nearest
from vit_jax.core.image_files import UNKNOWN_EXTENSIONS
from vit_jax.data import files
from vit_jax.data.source import Labels, Request, Source, row_offsets
from vit_jax.data.sources.image_folder import (
    FORMATS,
    METADATA,
    ImageFiles,
    ImageFolder,
    NoClassFolders,
    form_of,
)
from vit_jax.data.sources.split_names import HELD_OUT, held_out
from vit_jax.data.sources.splits import ALL, base_name, resolve
from vit_jax.data.sources.table_file import (
    TABLES,
    Column,
    Columns,
    Found,
    check_cells,
    class_order,
    find_files,
    first_of_same,
    is_table,
    read_table,
    refuse_rows,
    with_splits_in_paths,
)

WHOLE = ""  # the only table of a data set, in the place of the name of a split
_TABLE = f"a table of files and labels ({', '.join(TABLES)}), or a folder with one for each split"
_NO_LABELS_READ = "Where none is read, as by method.kind=mae, the same label for all will do."
_CHUNK = 2**16  # rows that are Python's for a moment


class ImageTable(ImageFiles):
    """A split of a table of images."""

    name = "image_table"

    def __init__(self, r: Request) -> None:
        split, where, options = r.split, r.where, r.table
        wanted = base_name(split, where=where)
        tables = find_tables(r.data_dir, where=where)
        if WHOLE not in tables:
            resolve(wanted, dict.fromkeys(tables, 1), where=where)
        columns = Columns(
            Column("input.image_column", options.image_column),
            Column("input.label", r.label, needed=r.labelled),
            Column("input.split_column", options.split_column, needed=bool(options.split_column)),
            Column("input.label_separator", options.label_separator),
        )
        # The table of the training split numbers the labels.
        chosen = {name: tables[name] for name in (WHOLE, "train", wanted) if name in tables}
        rows = _Rows.read(chosen, columns, by_path=wanted != ALL)
        self.location = ", ".join(rows.paths)
        splits = rows.split_texts if rows.split_column else ["train", "val", ALL]
        if wanted not in splits:
            rule = f"is not in {rows.split_column!r} of {self.location}. {nearest(wanted, splits)}"
            raise UnknownSplit(rule, field=f"{where}.split", value=repr(split))
        in_split = rows.in_split(wanted)
        self.part = resolve(
            split, {name: int(rows.in_split(name).sum()) for name in splits}, where=where
        )
        places = np.flatnonzero(in_split)[self.part.start : self.part.stop]
        self.num_examples = len(places)
        self.class_names = class_names = rows.class_names() if r.labelled else ()
        self.num_classes = len(class_names)
        self._labels = Labels(np.zeros(len(places) + 1, np.int64), np.zeros(0, np.int32))
        if r.labelled:
            self._labels = rows.labels_of(places, class_names)
        self.max_labels = max(1, int(np.diff(self._labels.offsets).max(initial=0)))

        self._folders, self._places = rows.folders, rows.places[places]
        self._names = rows.names.take(places)
        self._found = rows.found[places]
        missing = rows.check_files(places, options.on_bad_image)
        is_cut = wanted == "train" and not rows.split_column
        self.notes = (*rows.notes, *missing, *(HELD_OUT,) * is_cut)
        self._sizes = self._file_sizes()
        self.fingerprint = self._fingerprint(rows.prefixes)
        self.pixels = form_of(self.describe(0))

    def file(self, index: int) -> tuple[str, tuple[int, ...], int | None]:
        labels = tuple(self._labels.slice(index, index + 1).labels.tolist())
        size_bytes = int(self._sizes[index]) if self._found[index] else None
        return self.describe(index), labels, size_bytes

    def describe(self, index: int) -> str:
        return files.join(self._folders[self._places[index]], self._names[index].as_py())

    def stored_labels(self) -> Labels:
        return self._labels

    def file_names(self) -> list[str]:
        return self._names.to_pylist()

    def stamp(self) -> str:
        return files.stamp([self.describe(int(index)) for index in np.flatnonzero(self._found)])

    def _file_sizes(self) -> np.ndarray:
        """In bytes, int64 [n]; 0 for files that are not there."""
        paths = (self.describe(i) if found else "" for i, found in enumerate(self._found))
        if files.is_remote(self._folders[0]):
            return np.array([size or 0 for size in files.sizes(list(paths))], np.int64)
        return np.fromiter(map(_size, paths), np.int64, len(self._found))

    def _fingerprint(self, prefixes: Sequence[str]) -> str:
        result = hashlib.sha256("\n".join(self.class_names or ()).encode())
        for paths in _paths(prefixes, self._places, self._names):
            result.update("\n".join(paths).encode())
        for array in (*self._labels, self._sizes):
            result.update(np.ascontiguousarray(array).tobytes())
        return result.hexdigest()


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size if path else 0
    except OSError:
        return 0


def open_folder(r: Request) -> Source:
    """Images in folders of classes; else those of the table in their folder, one of METADATA."""
    try:
        return ImageFolder(r)
    except NoClassFolders:
        root = files.expanded(r.data_dir or "")
        tables = [path for name in METADATA for path in files.glob(root, name)]
        below = [path for name in METADATA for path in files.glob(root, f"*/{name}")]
        if len(tables) == 1 and not below:
            return ImageTable(r._replace(data_dir=tables[0]))
        if tables or not below:
            raise
        return ImageTable(r)


def find_tables(data_dir: str | None, *, where: str) -> dict[str, str]:
    """The tables of a data set, by split; WHOLE for the only one."""
    path = files.expanded(data_dir or "")
    if is_table(path) and not files.is_folder(path) and files.sizes([path]) != [None]:
        return {WHOLE: path}
    is_folder = data_dir is not None and files.is_folder(path)
    entries = files.list_folder(path) if is_folder else []
    names = [e.name for e in entries if e.is_file and is_table(e.name) and e.name[0] != "."]
    tables = {name.partition(".")[0]: files.join(path, name) for name in names}
    if not tables and is_folder:
        tables = {
            name: files.join(path, name, table)
            for name in files.subfolders(path)
            for table in METADATA
            if files.sizes([files.join(path, name, table)]) != [None]
        }
    if not tables or len(tables) < len(names):
        rule = f"is not {_TABLE}, but has {', '.join(names) or 'none'}."
        cure = f'For folders of classes set {where}.source="image_folder".'
        raise UserError(rule, field=f"{where}.data_dir", value=data_dir, cure=cure)
    return {WHOLE: next(iter(tables.values()))} if len(names) == 1 else tables


_ROW_COLUMNS = ("places", "names", "found", "orders", "labels", "splits", "tables", "lines")


class _Rows(NamedTuple):
    """The rows of all tables that are read, without repetitions, in the order of examples."""

    paths: list[str]  # of the tables
    notes: tuple[str, ...]
    folders: list[str]
    prefixes: list[str]  # of their paths below the table's folder
    places: np.ndarray  # int32 [n]: the folder of each image
    names: pa.Array  # [n] text: the file in it; as the table has it, where there is none
    found: np.ndarray  # bool [n]: whether it is there
    orders: np.ndarray  # uint64 [n], rising: of the SHA-256 of the path
    labels: Labels  # numbers in `texts`
    texts: list[str]  # all labels that occur
    several: bool  # whether an image may have several labels, or none
    splits: np.ndarray  # int32 [n], numbers in `split_texts`; -1: none
    split_texts: list[str]
    split_column: str  # "" if splits are made of the hashes of paths
    tables: np.ndarray  # int8 [n]: the table of each
    lines: np.ndarray  # int64 [n]: its line

    @classmethod
    def read(cls, chosen: dict[str, str], columns: Columns, *, by_path: bool) -> "_Rows":
        """Reads tables by split. UserError for rows that make no sense, whatever their split."""
        read = [read_table(path, columns) for path in chosen.values()]
        homes = {os.path.dirname(table.path) for table in read}
        folders: list[str] = []
        prefixes: list[str] = []
        parts: list[Found] = []
        for split, table in zip(chosen, read, strict=True):
            check_cells(table)
            home = os.path.dirname(table.path)
            part = find_files(home or ".", table, beside=split)
            refuse_rows(table, part.outside, "leaves the table's folder: write whole paths")
            if by_path and split == WHOLE:
                cure = f", or take slices of all images, {ALL!r}: input.split='{ALL}[:90%]'"
                read = [with_splits_in_paths(table, part, home, cure=cure)]
            parts.append(part._replace(places=part.places + np.int32(len(folders))))
            folders += part.folders
            below = os.path.basename(home) + "/" if len(homes) > 1 else ""
            prefixes += [
                prefix if prefix[:1] == "/" else below + prefix for prefix in part.prefixes
            ]
        same = first_of_same(folders, prefixes)
        places = same[np.concatenate([part.places for part in parts])]
        names = pa.concat_arrays([part.names for part in parts])
        lists = pa.concat_arrays([table.labels for table in read])
        encoded = lists.values.dictionary_encode()
        if read[0].splits is None or WHOLE not in chosen:
            sizes = [len(table.lines) for table in read]
            splits = np.repeat(np.arange(len(read), dtype=np.int32), sizes)
            split_texts = list(chosen)
        else:
            of_rows = pc.if_else(pc.equal(read[0].splits, ""), None, read[0].splits)
            texts = of_rows.dictionary_encode()
            splits = texts.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)
            split_texts = texts.dictionary.to_pylist()
        rows = cls(
            paths=[table.path for table in read],
            notes=tuple(table.note for table in read),
            folders=folders,
            prefixes=prefixes,
            places=places,
            names=names,
            found=np.concatenate([part.found for part in parts]),
            orders=_orders(prefixes, places, names),
            labels=Labels(lists.offsets.to_numpy(), encoded.indices.to_numpy()),
            texts=encoded.dictionary.to_pylist(),
            several=any(table.several for table in read),
            splits=splits,
            split_texts=split_texts,
            split_column=read[0].split_column if WHOLE in chosen else "the name",
            tables=np.repeat(np.arange(len(read), dtype=np.int8), [len(t.lines) for t in read]),
            lines=np.concatenate([table.lines for table in read]),
        )
        return rows._unique()

    def in_split(self, name: str) -> np.ndarray:
        """Returns whether each row is in a split, bool [n]."""
        if self.split_column:
            return self.splits == self.split_texts.index(name)
        if name == ALL:
            return np.ones(len(self.places), bool)
        # Of several labels the first; rows without any are as a class of their own.
        first = np.full(len(self.places), len(self.texts), np.int64)
        has_label = np.diff(self.labels.offsets) > 0
        first[has_label] = self.labels.labels[self.labels.offsets[:-1][has_label]]
        return held_out(self.orders, first) == (name == "val")

    def class_names(self) -> tuple[str, ...]:
        """The labels of the split `train`, in order; of all rows where there is no such split."""
        used = self.labels
        if self.split_column and "train" in self.split_texts:
            used = used.take(np.flatnonzero(self.in_split("train")))
        names = class_order([self.texts[number] for number in np.unique(used.labels)])
        wrong = [repr(name) for name in names if name != printable(name)]
        if wrong or not names:
            found = f"the label {wrong[0]} is not a line of text" if wrong else "no row has a label"
            raise UserError(f"{', '.join(self.paths)}: {found} (input.label). {_NO_LABELS_READ}")
        return tuple(names)

    def labels_of(self, places: np.ndarray, class_names: Sequence[str]) -> Labels:
        """The labels of rows as numbers of classes. UserError for a row that has none it may have.

        Labels of one image are rising, and none is there twice.
        """
        labels = self.labels.take(places)
        if not self.several:
            empty = places[np.diff(labels.offsets) == 0]
            self._refuse(empty, f"{len(empty):,} rows without a label.", _NO_LABELS_READ)
        number_of = {name: number for number, name in enumerate(class_names)}
        numbers = np.array([number_of.get(text, -1) for text in self.texts], np.int64)
        classes = numbers[labels.labels]
        unknown = np.flatnonzero(classes < 0)
        first = "".join(self.texts[number] for number in labels.labels[unknown[:1]])
        self._refuse(places[labels.examples()[unknown]], f"{first!r} is not a class of 'train'.")
        if not self.several:
            return Labels(labels.offsets, classes.astype(np.int32))
        examples, classes = np.divmod(
            np.unique(labels.examples() * len(class_names) + classes), len(class_names)
        )
        counts = np.bincount(examples, minlength=len(places))
        return Labels(row_offsets(counts), classes.astype(np.int32))

    def check_files(self, places: np.ndarray, on_bad_image: str) -> tuple[str, ...]:
        """A note on files that are not there; UserError for them, and for formats not read."""
        kinds = "|".join(kind[1:] for kind in UNKNOWN_EXTENSIONS)
        names = self.names.take(places)
        other = pc.match_substring_regex(names, rf"(?i)\.({kinds})$").to_numpy(zero_copy_only=False)
        first = "".join(map(self._file, places[other][:1].tolist()))
        rule = f"{first} is of a format that is not read, as are {int(other.sum()) - 1:,} others."
        self._refuse(places[other], rule, f"Convert them to one of {FORMATS}.")
        missing = places[~self.found[places]]
        shown = ", ".join(self._file(int(place)) for place in missing[:3])
        told = (
            f"{len(missing):,} of {len(places):,} images are not there: "
            f"{shown}{', ...' if len(missing) > 3 else ''}"
        )
        if on_bad_image == "skip":
            return (f"{told}; they count as bad images",) * bool(len(missing))
        self._refuse(missing, f"{told}.", 'See input.on_bad_image="skip".')
        return ()

    def _refuse(self, rows: np.ndarray, rule: str, cure: str = "") -> None:
        if len(rows):
            raise UserError(rule, field=f"{self._listed(rows)}:", cure=cure)

    def _unique(self) -> "_Rows":
        """The rows in their order, each file once. UserError if two rows say different things."""
        rank = np.lexsort((self.splits < 0, self.orders))  # of one file, rows with a split first
        same = np.flatnonzero(np.diff(self.orders[rank]) == 0)
        for one, other in zip(rank[same].tolist(), rank[same + 1].tolist(), strict=True):
            label, other_label = (
                "|".join(sorted({self.texts[i] for i in self.labels.slice(row, row + 1).labels}))
                for row in (one, other)
            )
            conflict = f"has the label {label!r}, and then {other_label!r}" * (label != other_label)
            if self.splits[one] != self.splits[other] and -1 not in self.splits[[one, other]]:
                names = (self.split_texts[self.splits[row]] for row in (one, other))
                conflict = conflict or f"is in two splits, {' and '.join(names)}"
            if conflict:
                cure = 'Several labels stand in one cell, with input.label_separator="|".'
                self._refuse(np.array([one, other]), f"{self._file(one)} {conflict}.", cure)
        rank = np.delete(rank, same + 1)
        note = (f"rows that repeat another and count once: {len(same):,}",) * bool(len(same))
        columns = {name: getattr(self, name).take(rank) for name in _ROW_COLUMNS}
        return self._replace(notes=self.notes + note, **columns)

    def _file(self, row: int) -> str:
        return files.join(self.folders[self.places[row]], self.names[row].as_py())

    def _listed(self, rows: np.ndarray) -> str:
        """The places of some rows in their tables: "labels.csv, line 3 and 5"."""
        shown = rows[:3].tolist()
        path = self.paths[self.tables[shown[0]]]
        lines = [f"{self.lines[row]:,}" for row in shown if self.paths[self.tables[row]] == path]
        more = ", ..." if len(rows) > 3 else ""
        return f"{path}, line{'s' * (len(lines) > 1)} {', '.join(lines)}{more}"


def _paths(prefixes: Sequence[str], places: np.ndarray, names: pa.Array) -> Iterator[list[str]]:
    """Paths of images, some at a time; their names are composed."""
    for start in range(0, len(places), _CHUNK):
        some = pc.utf8_normalize(names[start : start + _CHUNK], "NFC").to_pylist()
        of_names = places[start : start + _CHUNK].tolist()
        yield [prefixes[place] + name for place, name in zip(of_names, some, strict=True)]


def _orders(prefixes: Sequence[str], places: np.ndarray, names: pa.Array) -> np.ndarray:
    """The first 8 bytes of the SHA-256 of each path, uint64 [n]."""
    digests = (
        hashlib.sha256(path.encode()).digest()
        for paths in _paths(list(map(normal, prefixes)), places, names)
        for path in paths
    )
    return np.fromiter((int.from_bytes(d[:8]) for d in digests), np.uint64, len(places))
