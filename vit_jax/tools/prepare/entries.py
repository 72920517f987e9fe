"""Collections whose flags say what they are: files of --source, classes, labels of entries."""

import collections
import dataclasses
import functools
import glob
import hashlib
import io
import json
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from vit_jax.core.class_names import are_same, difference, normal, normal_names
from vit_jax.core.errors import UserError, explain_unreadable
from vit_jax.core.image_files import is_hidden
from vit_jax.tools.prepare.collection import MOST_CLASSES, CollectionRequest, Labels

MOST_BYTES = 256 * 2**20  # of a list of names
MOST_FILES = 1_000_000
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip")
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_SPLIT = re.compile(r"([a-z][a-z0-9_]*)=(.+)")


class SourceFile(NamedTuple):
    """A file of the source."""

    name: str  # its path below the folder that all files are in
    path: Path
    split: str | None  # of its images; None: assigned by their order


def source_files(source: str, suffixes: Sequence[str]) -> list[SourceFile]:
    """The files of a source, sorted by split and path; `suffixes`: of those taken from a folder.

    `source` has files, folders, or patterns such as "shard-{000..127}.tar" and "*.tar", separated
    by commas; "train=..." puts a pattern's files into a split. UserError if a pattern matches no
    file, or too many.
    """
    named = []
    for item in source.split(","):
        if not item:
            raise UserError(f"--source={source} has an empty item before or after a comma.")
        match = _SPLIT.fullmatch(item)
        split, pattern = match.groups() if match else (None, item)
        named += [(split or "", path) for path in _files(pattern, suffixes)]
    paths = [path for _, path in named]
    twice = [path for path, count in collections.Counter(paths).items() if count > 1]
    if twice:
        raise UserError(f"--source={source} names {twice[0]} twice.")
    root = os.path.commonpath([path.parent for path in paths])
    return [
        SourceFile(str(path.relative_to(root)), path, split or None)
        for split, path in sorted(named)
    ]


def _files(pattern: str, suffixes: Sequence[str]) -> list[Path]:
    path = Path(pattern)
    if path.is_dir():
        wanted = tuple(suffixes)
        there = [p for p in path.iterdir() if p.is_file() and not is_hidden(p.name)]
        paths = [p for p in there if p.name.lower().endswith(wanted)]
        # Others would be lost in silence: shard-0001.tar.zst among tars.
        packed = [p for p in there if p not in paths and p.stem.lower().endswith(wanted)]
        if packed := sorted(p for p in packed if p.suffix.lower() in _COMPRESSED):
            raise UserError(
                f"--source: {packed[0]} is compressed and not read ({len(packed):,} of {path}): "
                "decompress it, or name the files to read with a pattern."
            )
    elif path.exists():
        paths = [path]
    else:
        named = _ranges(pattern)
        paths = [
            Path(p) for one in named for p in (glob.glob(one) if glob.has_magic(one) else [one])
        ]
        if missing := [p for p in paths if not p.is_file()]:
            raise UserError(
                f"--source: no file {missing[0]} ({len(missing)} of {len(paths)} are missing)."
            )
    if not paths:
        raise UserError(f"--source: {pattern} names no files ({', '.join(suffixes)}).")
    return [path.absolute() for path in paths]


def _ranges(pattern: str) -> list[str]:
    """ "a{08..11}" -> a08, a09, a10, a11."""
    match = _RANGE.search(pattern)
    if not match:
        return [pattern]
    first, last = int(match[1]), int(match[2])
    if not 0 <= last - first < MOST_FILES:
        raise UserError(f"--source: {match[0]} names no files, or more than {MOST_FILES:,}.")
    numbers = [f"{number:0{len(match[1])}}" for number in range(first, last + 1)]
    rest = _ranges(pattern[match.end() :])
    if len(rest) * len(numbers) > MOST_FILES:
        raise UserError(f"--source: {pattern} names more than {MOST_FILES:,} files.")
    return [pattern[: match.start()] + number + end for number in numbers for end in rest]


class BadLabelError(ValueError):
    """An impossible label or weight."""


# The reprs of Classes and Reading are hashed with their part (see collection.Part).
@dataclasses.dataclass(frozen=True)
class Classes:
    """Classes of a data set whose source does not define them.

    The names stay in their file, since each of very many tasks holds a copy of this.
    """

    number: int
    path: str = ""  # of a file with their names; "": they are numbers
    digest: str = ""  # of this file

    @property
    def names(self) -> tuple[str, ...]:
        """Unique; the index of a name is its label. UserError if the file has changed."""
        return tuple(_numbers(self))

    def label(self, value: object) -> int:
        """The label of a class's name or number. Raises BadLabelError."""
        if isinstance(value, str) and (name := normal(value)) in (numbers := _numbers(self)):
            return numbers[name]
        if type(value) is int and 0 <= value < self.number:  # not a bool
            return value
        raise BadLabelError(value)

    def label_in_text(self, text: str) -> int:
        """The label of a class's name, or of its number in digits. Raises BadLabelError."""
        is_number = text.isascii() and text.isdigit() and normal(text) not in _numbers(self)
        return self.label(int(text) if is_number else text)

    def labels(self, value: object, *, several: bool) -> Labels:
        """The labels of one value or, with `several`, of a list; () for None. BadLabelError."""
        if value is None:
            return ()
        if isinstance(value, list) and (several or len(value) <= 1):
            labels = tuple(map(self.label, value))
            if len(set(labels)) == len(labels):
                return labels
            raise BadLabelError(value)
        return (self.label(value),)


@dataclasses.dataclass(frozen=True)
class ClassesInParquet(Classes):
    """Classes that the Parquet file `path` names, as Hugging Face's data sets do."""

    field: str = ""  # the column of the labels


def weights(value: object, labels: Labels) -> tuple[float, ...]:
    """A weight in [0, 1] for each label, or (). Raises BadLabelError."""
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) != len(labels):
        raise BadLabelError(value)
    for weight in value:
        if type(weight) not in (int, float) or not 0 <= weight <= 1:  # nor NaN
            raise BadLabelError(weight)
    return tuple(float(weight) for weight in value)


@dataclasses.dataclass(frozen=True)
class Reading:
    """The way in which entries of lists and samples are read."""

    classes: Classes
    label_field: str  # with the class or classes
    several: bool  # whether an image has a list of labels
    images_root: str = ""  # the folder that paths of images are relative to, and must not leave
    folder = ""  # put before a path to make it a name; not a field, see ReadingInFolder
    image_field = "image"  # with the path or the bytes; see ReadingOfField


@dataclasses.dataclass(frozen=True)
class ReadingInFolder(Reading):
    """The reading of lists that lie in several folders, where paths alone are not unique."""

    folder: str = ""  # of the list, below the one that all are in


@dataclasses.dataclass(frozen=True)
class ReadingOfField(ReadingInFolder):
    """The reading of lists whose images have another field than `image`."""

    image_field: str = "image"


def classes(request: CollectionRequest) -> Classes:
    """The classes of --classes or --num_classes. UserError."""
    if (request.classes is None) == (request.num_classes is None):
        raise UserError(
            "Give the classes: either --classes, a file with their names, one per line, or "
            "--num_classes where labels are numbers; not both."
        )
    if request.classes is None:
        number = request.num_classes or 0
        if not 1 <= number <= MOST_CLASSES:
            raise UserError(f"--num_classes={number:,}: from 1 to {MOST_CLASSES:,} are possible.")
        return Classes(number)
    path = Path(request.classes).expanduser().absolute()
    data = _read(path)
    return Classes(len(_names(path, data)), str(path), hashlib.sha256(data).hexdigest())


@functools.lru_cache(maxsize=4)
def _numbers(known: Classes) -> dict[str, int]:
    """Name -> label."""
    if not known.path:
        return {str(number): number for number in range(known.number)}
    if isinstance(known, ClassesInParquet):
        named = names_in_parquet(known.path, known.field) or ()
        if _digest(named) != known.digest:
            raise UserError(f"{known.path} has changed in the meantime: start again.")
        return {name: number for number, name in enumerate(named)}
    data = _read(Path(known.path))
    if hashlib.sha256(data).hexdigest() != known.digest:
        raise UserError(f"--classes={known.path} has changed in the meantime: start again.")
    return _names(Path(known.path), data)


def _read(path: Path) -> bytes:
    with explain_unreadable(f"--classes={path}"):
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_BYTES:
            raise UserError(
                f"--classes={path} is not a file of at most {MOST_BYTES // 2**20:,} MiB: a list of "
                "names, one per line."
            )
        return path.read_bytes()


def _names(path: Path, data: bytes) -> dict[str, int]:
    """Name -> label, for the lines of the file."""
    try:
        # Line ends as TFDS knows them, not every separator of Unicode.
        lines = io.StringIO(data.decode("utf-8-sig"), newline=None)
        names = [line.strip() for line in lines]
    except UnicodeDecodeError as error:
        raise UserError(f"--classes={path} is not UTF-8 text ({error}).") from error
    if not names or not all(names):
        raise UserError(f"--classes={path} has an empty line; each must have a class's name.")
    numbers: dict[str, int] = {}
    for number, name in enumerate(map(normal, names)):
        if name in numbers:
            raise UserError(
                f"--classes={path}: lines {numbers[name] + 1} and {number + 1} are both {name!r}."
            )
        numbers[name] = number
    return numbers


def classes_of_lists(request: CollectionRequest, field: str, parquet: Sequence[Path]) -> Classes:
    """Like `classes`, but those that Parquet files name need not be given.

    UserError where the names of two files, or of a file and --classes, differ.
    """
    named = {path: names for path in parquet if (names := names_in_parquet(str(path), field))}
    if not named:
        return classes(request)
    first, names = next(iter(named.items()))
    if request.classes is not None:
        known = classes(request)
        for path, theirs in named.items():
            if lacking := [name for name in theirs if name not in _numbers(known)]:
                raise UserError(
                    f"{path} names the class {lacking[0]!r} in its metadata, which --classes="
                    f"{request.classes} does not have ({len(lacking):,} of {len(theirs):,}). Add "
                    "it, or leave --classes out: then the names of the file are taken."
                )
        return known
    for path, theirs in named.items():
        if not are_same(theirs, names):
            raise UserError(
                f"{path} and {first} name other classes: {difference(theirs, names)}. Give all of "
                "them with --classes: then they are matched by name."
            )
    if request.num_classes not in (None, len(names)):
        raise UserError(
            f"--num_classes={request.num_classes}, but {first} names {len(names):,} classes: "
            f"{', '.join(names[:5])} ... Leave it out."
        )
    return ClassesInParquet(len(names), str(first), _digest(names), field)


def names_in_parquet(path: str, field: str) -> tuple[str, ...] | None:
    """The names of the classes in a column's metadata, as Hugging Face writes them; None: none."""
    try:
        metadata = pq.read_schema(path).metadata or {}
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
        feature = features[field]
        while isinstance(feature, list) or "feature" in feature:  # a list of labels
            feature = feature[0] if isinstance(feature, list) else feature["feature"]
        names = feature["names"] if feature.get("_type") == "ClassLabel" else None
    except (OSError, pa.ArrowException, ValueError, LookupError, TypeError, AttributeError):
        return None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return None
    return tuple(normal_names(names, f"{path}, column {field!r},"))


def _digest(names: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(names).encode()).hexdigest()
