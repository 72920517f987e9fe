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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from vit_jax.core.class_names import are_same, difference, normal, normal_names
from vit_jax.core.errors import UserError, reading
from vit_jax.core.image_files import is_hidden
from vit_jax.data.sources.split_names import splits_in_paths
from vit_jax.data.sources.splits import ALL
from vit_jax.tools.prepare.collection import CollectionRequest, Labels, refuse_source

MOST_BYTES = 256 * 2**20  # of a list of names
MOST_FILES = 1_000_000
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip")
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
SPLIT_NAME = rf"(?!{ALL}\b)[a-z][a-z0-9_]*"  # to TFDS `all` is all splits
_SPLIT = re.compile(rf"({SPLIT_NAME})=(.+)")


class SourceFile(NamedTuple):
    name: str  # its path below the folder that all files are in
    path: Path
    split: str | None  # of its images; None: assigned by their order


def source_files(source: str, suffixes: Sequence[str]) -> list[SourceFile]:
    """The files of a source, sorted by split and path; `suffixes`: of those taken from a folder.

    `source` has files, folders, or patterns such as "shard-{000..127}.tar" and "*.tar", separated
    by commas; "train=..." puts a pattern's files into a split.
    """
    named, roots = [], []
    for item in source.split(","):
        match = _SPLIT.fullmatch(item)
        split, pattern = match.groups() if match else (None, item)
        folder, found = _files(pattern, suffixes)
        roots.append(folder)
        named += [(split or "", path) for path in found]
    path, number = collections.Counter(path for _, path in named).most_common(1)[0]
    if number > 1:
        refuse_source(source, f"names {path} twice.")
    root = os.path.commonpath(roots)
    return [
        SourceFile(str(path.relative_to(root)), path, split or None)
        for split, path in sorted(named)
    ]


def split_by_names(
    files: Sequence[SourceFile], source: str
) -> tuple[list[SourceFile], tuple[str, ...]]:
    """Files in the splits that their paths say (splits_in_paths), unless --source does; a note."""
    paths = [file.name for file in files if file.split is None]
    by_path = dict(zip(paths, splits_in_paths(paths), strict=True))
    if any(all(splits == same for splits in by_path.values()) for same in ([], ["train"])):
        return list(files), ()
    unclear = [
        path
        for path, splits in by_path.items()
        if len(splits) != 1 or not re.fullmatch(SPLIT_NAME, splits[0])
    ]
    if unclear:
        rule = f"has files whose paths say splits, but of some say none, or several: {unclear[0]}."
        cure = 'Name all: --source="train=a-*.tar,test=b-*.tar".'
        refuse_source(source, rule, cure)
    sizes = collections.Counter(splits[0] for splits in by_path.values())
    listed = ", ".join(f"{split} ({number:,})" for split, number in sizes.items())
    note = f"Splits by the paths of files, as Hugging Face's datasets reads them: {listed}."
    named = {path: splits[0] for path, splits in by_path.items()}
    return [file._replace(split=named.get(file.name, file.split)) for file in files], (note,)


def _files(pattern: str, suffixes: Sequence[str]) -> tuple[str, list[Path]]:
    """The folder that all files are in, and the files: in a folder, or else below it."""
    path = Path(pattern)
    if pattern and path.is_dir():
        wanted = tuple(suffixes)
        there = [p for p in path.iterdir() if p.is_file() and not is_hidden(p.name)]
        if not any(p.name.lower().endswith(wanted) for p in there):
            there = list(_files_below(path))
        paths = [p for p in there if p.name.lower().endswith(wanted)]
        # Others would be lost in silence: shard-0001.tar.zst among tars.
        packed = [p for p in there if p not in paths and p.stem.lower().endswith(wanted)]
        if packed := sorted(p for p in packed if p.suffix.lower() in _COMPRESSED):
            refuse_source(path, f"has {packed[0]}, which is compressed ({len(packed):,} such).")
    elif pattern and path.exists():
        paths = [path]
    else:
        found = [glob.glob(one) if glob.has_magic(one) else [one] for one in _ranges(pattern)]
        paths = [Path(name) for names in found for name in names]
    missing = [p for p in paths if not p.is_file()]
    if missing or not paths:
        rule = f"lacks {f'{len(missing):,} files, as {missing[0]}' if missing else 'any file'}"
        refuse_source(pattern, f"{rule} ({', '.join(suffixes)}).")
    paths = [path.absolute() for path in paths]
    folders = [path.absolute()] if path.is_dir() else [path.parent for path in paths]
    return os.path.commonpath(folders), paths


def _files_below(folder: Path) -> Iterator[Path]:
    for inside, folders, names in os.walk(folder, onerror=raise_unreadable):
        folders[:] = [name for name in folders if not is_hidden(name)]
        yield from (Path(inside, name) for name in names if not is_hidden(name))


def raise_unreadable(error: OSError) -> None:
    """Raises UserError for a folder, where os.walk would pass over it."""
    with reading(error.filename):
        raise error


def _ranges(pattern: str) -> list[str]:
    """ "a{08..11}" -> a08, a09, a10, a11."""
    match = _RANGE.search(pattern)
    if not match:
        return [pattern]
    first, last = int(match[1]), int(match[2])
    rest = _ranges(pattern[match.end() :])
    if (last + 1 - first) * len(rest) > MOST_FILES:
        refuse_source(pattern, f"names more than {MOST_FILES:,} files.")
    numbers = [f"{number:0{len(match[1])}}" for number in range(first, last + 1)]
    return [pattern[: match.start()] + number + end for number in numbers for end in rest]


class BadLabelError(ValueError):
    """An impossible label or weight."""


# The reprs of Classes and Reading are hashed with their part (see collection.Part).
@dataclasses.dataclass(frozen=True)
class Classes:
    """Classes of a source; names stay in their file, since each of very many tasks has a copy."""

    number: int
    path: str = ""  # of a file with their names; "": they are numbers
    digest: str = ""  # of these
    field: str = ""  # a column of a Parquet file, which names them as Hugging Face's data sets do

    @property
    def names(self) -> tuple[str, ...]:
        """Unique; the index of a name is its label."""
        return tuple(_numbers(self))

    def label(self, value: object) -> int:
        if isinstance(value, str) and (name := normal(value)) in (numbers := _numbers(self)):
            return numbers[name]
        if type(value) is int and 0 <= value < self.number:  # not a bool
            return value
        raise BadLabelError(value)

    def label_in_text(self, text: str) -> int:
        is_number = text.isascii() and text.isdigit() and normal(text) not in _numbers(self)
        return self.label(int(text) if is_number else text)

    def labels(self, value: object, *, several: bool) -> Labels:
        if value is None:
            return ()
        if isinstance(value, list) and (several or len(value) <= 1):
            labels = tuple(map(self.label, value))
            if len(set(labels)) == len(labels):
                return labels
            raise BadLabelError(value)
        return (self.label(value),)


def weights(value: object, labels: Labels) -> tuple[float, ...]:
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
    classes: Classes
    label_field: str  # with the class or classes
    several: bool  # whether an image has a list of labels
    images_root: str = ""  # the folder that paths of images are relative to, and must not leave
    folder: str = ""  # of the list, put before a path where several folders have lists
    image_field: str = "image"  # with the path or the bytes


def classes(request: CollectionRequest) -> Classes:
    if (request.classes is None) == (request.num_classes is None):
        raise UserError("Give --classes, a file of names, one per line, or --num_classes.")
    if request.classes is None:
        return Classes(request.num_classes or 0)
    path = str(Path(request.classes).expanduser().absolute())
    numbers, digest = _listed(path)
    return Classes(len(numbers), path, digest)


@functools.lru_cache(maxsize=4)
def _numbers(known: Classes) -> dict[str, int]:
    if not known.path:
        return {str(number): number for number in range(known.number)}
    if known.field:
        named = names_in_parquet(known.path, known.field) or ()
        numbers, digest = {name: number for number, name in enumerate(named)}, _digest(named)
    else:
        numbers, digest = _listed(known.path)
    if digest != known.digest:
        raise UserError("has changed: start again.", field=known.path)
    return numbers


def _listed(path: str) -> tuple[dict[str, int], str]:
    """The number of each name in a file of classes, and the file's digest."""
    with reading("--classes", path):
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_BYTES:
            raise OSError(f"not a file of at most {MOST_BYTES // 2**20:,} MiB")
        data = Path(path).read_bytes()
        # Line ends as TFDS knows them, not every separator of Unicode.
        lines = io.StringIO(data.decode("utf-8-sig"), newline=None)
        names = [normal(line.strip()) for line in lines]
        numbers = {name: number for number, name in enumerate(names)}
        for number, name in enumerate(names or [""]):
            if not name or numbers[name] != number:
                raise ValueError(f"an empty line, or a name twice: {name!r} in line {number + 1}")
    return numbers, hashlib.sha256(data).hexdigest()


def classes_of_lists(request: CollectionRequest, field: str, parquet: Sequence[Path]) -> Classes:
    """Like `classes`, but those that Parquet files name need not be given."""
    named = {path: names for path in parquet if (names := names_in_parquet(str(path), field))}
    if not named:
        return classes(request)
    first, names = next(iter(named.items()))
    if request.classes is not None:
        known = classes(request)
        for path, theirs in named.items():
            if lacking := [name for name in theirs if name not in _numbers(known)]:
                rule = f"lacks {len(lacking):,} classes of {path}, as {lacking[0]!r}."
                raise UserError(rule, field="--classes", value=request.classes)
        return known
    for path, theirs in named.items():
        if not are_same(theirs, names):
            rule = f"{path} and {first} name other classes: {difference(theirs, names)}."
            raise UserError(rule, cure="With --classes they are matched by name.")
    if request.num_classes not in (None, len(names)):
        rule = f"is not the number of classes that {first} names, {len(names):,}: leave it out."
        raise UserError(rule, field="--num_classes", value=request.num_classes)
    return Classes(len(names), str(first), _digest(names), field)


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
