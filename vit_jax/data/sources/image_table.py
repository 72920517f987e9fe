"""Images whose labels stand in a table: CSV, TSV or Parquet with a column of files, one of labels.

    labels.csv            one table, of which the column `split` or `fold` says where an image is,
                          or one in ten images is `val`, as in image_folder.py
    train.csv, val.csv    or a table for each split, in one folder

Files are named from the table's folder, with or without their extension and the folder beside the
table that they are in, such as `images/`. Examples are in the order of the SHA-256 of their paths:
the order of the rows does not matter, and a slice of a split holds all classes.
"""

import hashlib
import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from vit_jax.core.class_names import normal, printable
from vit_jax.core.errors import UnknownSplit, UserError, nearest
from vit_jax.core.image_files import extension
from vit_jax.data import files
from vit_jax.data.label_index import Labels
from vit_jax.data.source import Example, Source, row_offsets
from vit_jax.data.sources.image_folder import FORMATS, NOT_READ, read_image
from vit_jax.data.sources.request import Request
from vit_jax.data.sources.splits import ALL, HELD_OUT, base_name, held_out, resolve
from vit_jax.data.sources.table_file import (
    TABLES,
    Column,
    Columns,
    Found,
    check_cells,
    class_order,
    find_files,
    is_table,
    read_table,
)

WHOLE = ""  # the only table of a data set, in the place of the name of a split
_OF_HUGGING_FACE = ("metadata.csv", "metadata.parquet")  # in the folder of a split
_NO_LABELS_READ = "Where none is read, as by method.kind=mae, the same label for all will do."
_CHUNK = 2**16  # rows that are Python's for a moment


class ImageTable(Source):
    """A split of a table of images. EXIF orientation is honoured."""

    name = "image_table"

    def __init__(self, r: Request) -> None:
        split, where, options = r.split, r.where, r.table
        wanted = base_name(split, where=where)
        tables = find_tables(r.data_dir, where=where)
        if WHOLE not in tables and wanted not in tables:
            raise UnknownSplit(
                f"{where}.split={split!r}: {where}.data_dir={r.data_dir} has no table {wanted!r}. "
                f"{nearest(wanted, tables)}"
            )
        columns = Columns(
            Column("input.image_column", options.image_column),
            Column("input.label", r.label, needed=r.labelled),
            Column(
                "input.split_column", options.split_column, needed=options.split_column is not None
            ),
            Column("input.label_separator", options.label_separator),
        )
        # The table of the training split numbers the labels.
        chosen = {name: tables[name] for name in (WHOLE, "train", wanted) if name in tables}
        rows = _Rows.read(chosen, columns)
        self.location = ", ".join(rows.paths)
        splits = rows.split_names()
        if wanted not in splits:
            raise UnknownSplit(
                f"{where}.split={split!r}: {rows.split_column!r} of {self.location} has no "
                f"{wanted!r}; input.split_column names another column. {nearest(wanted, splits)}"
            )
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
        self._names = rows.names.take(pa.array(places))
        self._found = rows.found[places]
        missing = rows.check_files(places, options.on_bad_image)
        is_cut = wanted == "train" and not rows.split_column
        self.notes = (*rows.notes, *missing, *(HELD_OUT,) * is_cut)
        self._sizes = self._file_sizes()
        self.fingerprint = self._fingerprint(rows.prefixes)

    def read(self, indices: np.ndarray) -> list[Example]:
        return [self._read(int(index)) for index in indices]

    def stored_labels(self) -> Labels:
        return self._labels

    def file_names(self) -> list[str]:
        return self._names.to_pylist()

    def stamp(self) -> str:
        return files.stamp([self.describe(int(index)) for index in np.flatnonzero(self._found)])

    def describe(self, index: int) -> str:
        return files.join(self._folders[self._places[index]], self._names[index].as_py())

    def _read(self, index: int) -> Example:
        path, size_bytes = self.describe(index), int(self._sizes[index])
        labels = tuple(self._labels.slice(index, index + 1).labels.tolist())
        if not self._found[index]:
            return Example(b"", labels, fault="there is no such file")
        return read_image(path, index, labels, size_bytes, seen="table was opened")

    def _file_sizes(self) -> np.ndarray:
        """In bytes, int64 [n]; 0 for files that are not there."""
        paths = (self.describe(i) if found else "" for i, found in enumerate(self._found))
        if files.is_remote(self._folders[0]):
            return np.array([size or 0 for size in files.sizes(list(paths))], np.int64)
        return np.fromiter(map(_size, paths), np.int64, len(self._found))

    def _fingerprint(self, prefixes: Sequence[str]) -> str:
        """The SHA-256 of the classes, and of each image's path, labels and size."""
        result = hashlib.sha256("\n".join(self.class_names or ()).encode())
        for start in range(0, self.num_examples, _CHUNK):
            chunk = slice(start, start + _CHUNK)
            names = pc.utf8_normalize(self._names[chunk], "NFC").to_pylist()
            places = self._places[chunk].tolist()
            lines = [prefixes[place] + name for place, name in zip(places, names, strict=True)]
            result.update("\n".join(lines).encode())
        for array in (*self._labels, self._sizes):
            result.update(np.ascontiguousarray(array).tobytes())
        return result.hexdigest()


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size if path else 0
    except OSError:
        return 0


def find_tables(data_dir: str | None, *, where: str) -> dict[str, str]:
    """The tables of a data set, by split; WHOLE for the only one. UserError if there is none."""
    if data_dir is None:
        raise UserError(
            f'{where}.data_dir is not set; {where}.source="image_table" needs it: a table of files '
            f"and labels ({', '.join(TABLES)}), or a folder with one for each split."
        )
    path = files.expanded(data_dir)
    if not files.is_folder(path):
        there = files.sizes([path]) != [None]
        if there and is_table(path):
            return {WHOLE: path}
        what = f"not a table: it ends in none of {', '.join(TABLES)}" if there else "not there"
        raise UserError(f"{where}.data_dir={data_dir} is {what}. Give a table, or its folder.")
    listed = files.list_folder(path)
    names = [one.name for one in listed if one.is_file and is_table(one.name)]
    names = [name for name in names if not name.startswith(".")]
    found = {name.partition(".")[0]: files.join(path, name) for name in names}
    if len(found) < len(names):
        twice = sorted(name for name in names if files.join(path, name) not in found.values())
        raise UserError(
            f"{where}.data_dir={data_dir} has {twice[0]} and another table of that name: which of "
            f"them is read? Name one: {where}.data_dir={files.join(path, twice[0])}."
        )
    if not found:
        inside = [files.join(path, name) for name in files.subfolders(path)]
        found = {
            folder.rpartition("/")[2]: files.join(folder, name)
            for folder in inside
            for name in _OF_HUGGING_FACE
            if files.sizes([files.join(folder, name)]) != [None]
        }
    if not found:
        raise UserError(
            f"{where}.data_dir={data_dir} holds no table ({', '.join(TABLES)}). It should have a "
            "column of files and one of labels. For folders of classes set "
            f'{where}.source="image_folder".'
        )
    return {WHOLE: next(iter(found.values()))} if len(names) == 1 else found


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
    def read(cls, chosen: dict[str, str], columns: Columns) -> "_Rows":
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
            if part.outside.any():
                row = int(np.flatnonzero(part.outside)[0])
                raise UserError(
                    f"{table.path}, line {table.lines[row]:,}: {table.images[row]} is outside of "
                    f"the table's folder (such rows: {part.outside.sum():,}). Put the table above "
                    "its images, or write whole paths, which begin with /."
                )
            parts.append(part._replace(places=part.places + np.int32(len(folders))))
            folders += part.folders
            below = os.path.basename(home) + "/" if len(homes) > 1 else ""
            prefixes += [
                prefix if prefix[:1] == "/" else below + prefix for prefix in part.prefixes
            ]
        places = np.concatenate([part.places for part in parts])
        names = pa.concat_arrays([part.names for part in parts])
        encoded = pa.concat_arrays([table.labels for table in read]).dictionary_encode()
        counts = np.concatenate([table.counts for table in read])
        if read[0].splits is None or WHOLE not in chosen:
            sizes = [len(table.lines) for table in read]
            splits = np.repeat(np.arange(len(read), dtype=np.int32), sizes)
            split_texts = list(chosen)
        else:
            of_rows = pc.if_else(pc.equal(read[0].splits, ""), None, read[0].splits)
            texts = of_rows.dictionary_encode()
            splits = texts.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)
            split_texts = texts.dictionary.to_pylist()
        labels = encoded.indices.to_numpy(zero_copy_only=False)
        rows = cls(
            paths=[table.path for table in read],
            notes=tuple(table.note for table in read),
            folders=folders,
            prefixes=prefixes,
            places=places,
            names=names,
            found=np.concatenate([part.found for part in parts]),
            orders=_orders(prefixes, places, names),
            labels=Labels(row_offsets(counts), labels.astype(np.int32)),
            texts=encoded.dictionary.to_pylist(),
            several=any(table.several for table in read),
            splits=splits,
            split_texts=split_texts,
            split_column=read[0].split_column if WHOLE in chosen else "the name",
            tables=np.repeat(np.arange(len(read), dtype=np.int8), [len(t.lines) for t in read]),
            lines=np.concatenate([table.lines for table in read]),
        )
        return rows._unique()

    def split_names(self) -> list[str]:
        """The splits that there are."""
        return self.split_texts if self.split_column else ["train", "val", ALL]

    def in_split(self, name: str) -> np.ndarray:
        """Whether each row is in a split, bool [n]."""
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
        if not names:
            raise UserError(
                f"{', '.join(self.paths)}: no row has a label. Set input.label to the column that "
                f"has them. {_NO_LABELS_READ}"
            )
        for name in names:
            if name != printable(name):
                raise UserError(f"{self.paths[0]}: {name!r} is not a class's name, of one line.")
        return tuple(names)

    def labels_of(self, places: np.ndarray, class_names: Sequence[str]) -> Labels:
        """The labels of rows as numbers of classes. UserError for a row that has none it may have.

        Labels of one image are rising, and none is there twice.
        """
        labels = self.labels.take(places)
        empty = places[np.diff(labels.offsets) == 0]
        if len(empty) and not self.several:
            raise UserError(
                f"rows without a label: {len(empty):,} ({self._listed(empty)}). Write one into "
                f"each, or delete them. {_NO_LABELS_READ}"
            )
        number_of = {name: number for number, name in enumerate(class_names)}
        numbers = np.array([number_of.get(text, -1) for text in self.texts], np.int64)
        classes = numbers[labels.labels]
        if len(unknown := np.flatnonzero(classes < 0)):
            row = places[labels.examples()[unknown[:1]]]
            raise UserError(
                f"{self._listed(row)}: the label {self.texts[labels.labels[unknown[0]]]!r} is of "
                "no image in the split 'train', whose labels are the classes. Correct it, or leave "
                "these rows out."
            )
        if not self.several:
            return Labels(labels.offsets, classes.astype(np.int32))
        examples, classes = np.divmod(
            np.unique(labels.examples() * len(class_names) + classes), len(class_names)
        )
        counts = np.bincount(examples, minlength=len(places))
        return Labels(row_offsets(counts), classes.astype(np.int32))

    def check_files(self, places: np.ndarray, on_bad_image: str) -> tuple[str, ...]:
        """A note on files that are not there; UserError for them, and for formats not read."""
        kinds = "|".join(kind[1:] for kind in sorted(NOT_READ))
        names = self.names.take(pa.array(places))
        other = pc.match_substring_regex(names, rf"(?i)\.({kinds})$").to_numpy(zero_copy_only=False)
        if other.any():
            first = self._file(int(places[other][0]))
            raise UserError(
                f"{first}: {extension(first)} images are not read ({int(other.sum()):,} of "
                f"{', '.join(self.paths)}). Convert them to one of {FORMATS} with any image "
                "program, or delete their rows."
            )
        missing = places[~self.found[places]]
        if not len(missing):
            return ()
        shown = ", ".join(self._file(int(place)) for place in missing[:3])
        told = (
            f"{len(missing):,} of {len(places):,} images are not there: "
            f"{shown}{', ...' if len(missing) > 3 else ''}"
        )
        if on_bad_image == "skip":
            return (f"{told}; they count as bad images",)
        raise UserError(
            f"{told} ({self._listed(missing[:1])}). Files are looked for from the table's folder "
            "and the folders in it, with or without an extension: put them there, or delete these "
            'rows; input.on_bad_image="skip" gives such images weight 0.'
        )

    def _unique(self) -> "_Rows":
        """The rows in their order, each file once. UserError if two rows say different things."""
        rank = np.lexsort((self.splits < 0, self.orders))  # of one file, rows with a split first
        same = np.flatnonzero(np.diff(self.orders[rank]) == 0)
        for one, other in zip(rank[same].tolist(), rank[same + 1].tolist(), strict=True):
            texts = [self._label_texts(row) for row in (one, other)]
            if texts[0] != texts[1]:
                raise UserError(
                    f"{self._listed(np.array([one, other]))}: {self._file(one)} has the label "
                    f"{'|'.join(texts[0])!r}, and then {'|'.join(texts[1])!r}. Keep one of these "
                    "rows; several labels of an image stand in one cell, with "
                    'input.label_separator="|" between them.'
                )
            if self.splits[one] != self.splits[other] and -1 not in self.splits[[one, other]]:
                raise UserError(
                    f"{self._listed(np.array([one, other]))}: {self._file(one)} is in two splits, "
                    f"{' and '.join(self.split_texts[self.splits[r]] for r in (one, other))}: what "
                    "is measured on an image that was trained on means nothing. Keep one row."
                )
        rank = np.delete(rank, same + 1)
        note = (f"rows that repeat another and count once: {len(same):,}",) * bool(len(same))
        return self._replace(
            notes=self.notes + note,
            places=self.places[rank],
            names=self.names.take(pa.array(rank)),
            found=self.found[rank],
            orders=self.orders[rank],
            labels=self.labels.take(rank),
            splits=self.splits[rank],
            tables=self.tables[rank],
            lines=self.lines[rank],
        )

    def _label_texts(self, row: int) -> list[str]:
        return sorted({self.texts[i] for i in self.labels.slice(row, row + 1).labels})

    def _file(self, row: int) -> str:
        return files.join(self.folders[self.places[row]], self.names[row].as_py())

    def _listed(self, rows: np.ndarray) -> str:
        """The places of some rows in their tables: "labels.csv, line 3 and 5"."""
        shown = rows[:3].tolist()
        path = self.paths[self.tables[shown[0]]]
        lines = [f"{self.lines[row]:,}" for row in shown if self.paths[self.tables[row]] == path]
        more = ", ..." if len(rows) > 3 else ""
        return f"{path}, line{'s' * (len(lines) > 1)} {', '.join(lines)}{more}"


def _orders(prefixes: Sequence[str], places: np.ndarray, names: pa.Array) -> np.ndarray:
    """The first 8 bytes of the SHA-256 of each path, uint64 [n]."""
    composed = [normal(prefix) for prefix in prefixes]
    result = np.empty(len(places), np.uint64)
    for start in range(0, len(places), _CHUNK):
        some = pc.utf8_normalize(names[start : start + _CHUNK], "NFC").to_pylist()
        of_chunk = places[start : start + _CHUNK].tolist()
        result[start : start + len(some)] = [
            int.from_bytes(hashlib.sha256((composed[place] + name).encode()).digest()[:8])
            for place, name in zip(of_chunk, some, strict=True)
        ]
    return result
