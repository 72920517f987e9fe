"""Data sets on disk as TFDS writes them: record files, dataset_info.json and features.json.

TFDS reads the metadata, but it imports the Python module of every class that features.json names,
and looks for it in the current folder too. So the file is read here first, and TFDS gets a copy of
what was read. It gets no names of classes: it would drop a line of spaces, and with it give later
classes other numbers. The records are read at random by this package.
https://www.tensorflow.org/datasets/external_tfrecord
"""

import json
import posixpath
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from vit_jax.core.errors import UserError, describe_error, reading
from vit_jax.data import files, label_index
from vit_jax.data.maps import VOID
from vit_jax.data.source import MASK, Example, Labels, MapKind, Request, Source, digest
from vit_jax.data.sources.joined import locate, read_parts
from vit_jax.data.sources.records import ArrayRecords, TFRecords, copies
from vit_jax.data.sources.splits import Slice, resolve
from vit_jax.data.sources.tfds_labels import FEATURES, LabelReader, only_value
from vit_jax.data.sources.tfds_writer import NOTE

INFO = "dataset_info.json"

HOW_TO_GET = (
    'To get a data set, for example CIFAR-10: python -c "import tensorflow_datasets as tfds; '
    "tfds.builder('cifar10', data_dir='DIR').download_and_prepare()\"; then set "
    "data_dir=DIR/cifar10. ImageNet (imagenet2012) has to be downloaded by hand first: its tar "
    "files, ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar, into DIR/downloads/manual."
)

# "type" with "content" beside it is how TFDS wrote it before 4.5. It takes both spellings.
_NAMES_CODE = ("pythonClassName", "python_class_name", "type")
_VERSION = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)")
_TFDS_CLASS = re.compile(r"tensorflow_datasets(\.[A-Za-z_]\w*)+")


def read_info(folder: str) -> Any:
    """tfds.core.DatasetInfo of the data set in `folder`, without class names."""
    try:
        parts = {name: files.read(files.join(folder, name)) for name in (INFO, FEATURES)}
        if foreign := next(_foreign_classes(json.loads(parts[FEATURES].decode())), None):
            raise ValueError(f"the class {foreign!r} would be code from outside of TFDS")
        with tempfile.TemporaryDirectory() as copy:
            for name, content in parts.items():
                Path(copy, name).write_bytes(content)
            import tensorflow_datasets

            return tensorflow_datasets.builder_from_directory(copy).info
    except Exception as error:  # whatever tfds raises for damaged metadata
        rule = f"has {INFO} or {FEATURES} that cannot be read: {describe_error(error)}."
        raise UserError(rule, field=folder, cure=HOW_TO_GET) from error


def _foreign_classes(features: Any) -> Iterator[str]:
    """Names of classes that are not of TFDS, at whatever depth."""
    if isinstance(features, list):
        for value in features:
            yield from _foreign_classes(value)
    elif isinstance(features, dict):
        yield from _foreign_classes(list(features.values()))
        for key in _NAMES_CODE:
            name = features.get(key)
            names_code = key != "type" or "content" in features
            if isinstance(name, str) and names_code and not _TFDS_CLASS.fullmatch(name):
                yield name
        if isinstance(features.get("json"), str):  # a feature that is written inside a string
            yield from _foreign_classes(json.loads(features["json"]))


_BLOCK = 256  # records that are read at once for their names
_MOST_LABELS = 64  # of an example, where `labels` is a list and nothing says how many it has


_FORMATS: dict[str, type[ArrayRecords] | type[TFRecords]] = {
    "tfrecord": TFRecords,
    "array_record": ArrayRecords,
}


class Tfds(Source):
    """A split of a data set whose examples have `image` and a label: see LabelReader."""

    part: Slice

    def __init__(self, r: Request) -> None:
        """`r.num_classes` is needed where the metadata do not say how many there are."""
        self.location = folder = find_folder(r.data_dir, where=r.where)
        info = read_info(folder)
        _check_image(folder, info.features)
        self.name = info.name
        sizes = {name: s.num_examples for name, s in info.splits.items()}
        shards = {name: s.shard_lengths for name, s in info.splits.items()}
        self.part = part = resolve(r.split, sizes, where=r.where, shard_lengths=shards)
        self.num_examples = part.num_examples

        published = info.splits[part.name]
        paths = [files.join(folder, Path(path).name) for path in published.filepaths]
        counts = list(published.shard_lengths)
        if min(counts) < 0 or (kind := info.file_format.value) not in _FORMATS:
            raise UserError(f"{folder}: {INFO} is damaged, or not of {' or '.join(_FORMATS)}.")
        sizes_bytes = files.sizes(paths)
        content = _content(folder)
        # Of names, sizes and counts, and of the content's hash. The records are not read.
        names = [posixpath.basename(path) for path in paths]
        known = [info.name, str(info.version), list(part), names, sizes_bytes, counts]
        self.fingerprint = digest(json.dumps(known + [content] * bool(content)))
        # Only the files that a slice touches are looked at.
        ends = np.cumsum(counts)
        first, last = np.searchsorted(ends, [part.start, part.stop - 1], side="right")
        touched = slice(first, last + 1)
        self._files, counts = paths[touched], counts[touched]
        self._first = part.start - int(ends[touched][0] - counts[0])
        self._ends = np.cumsum(counts)
        present = _complete(folder, self._files, sizes_bytes[touched])
        if r.cache is not None:
            self._files = copies(r.cache, info.name, content, self._files, present)
        self._records = _FORMATS[kind](self._files, counts)

        self._label_file = files.join(folder, label_index.file_name(part.name))
        self._split_size = sizes[part.name]
        self._labels: LabelReader | None = None
        self.num_classes = 0
        if r.labelled:
            self._labels = reader = LabelReader(folder, info.features, r)
            self.weighted = reader.weighted
            self.max_labels = self._most_labels() if reader.is_list else 1
            self.num_classes, self.class_names = reader.num_classes, reader.class_names
            if reader.mask:
                self.maps = (MapKind(MASK, VOID if r.void is None else r.void, self.num_classes),)
        if self._labels is None or not self._labels.is_usual:
            label = r.label if r.labelled else None
            self.fingerprint = digest(f"{self.fingerprint}: label {label}")
        # TFDS's copy of the message: TensorFlow's takes three seconds to import.
        from tensorflow_datasets.proto import tf_example_pb2

        self._parse = tf_example_pb2.Example.FromString

    def read(self, indices: np.ndarray) -> list[Example]:
        records = self._read_records(indices)
        return [self._example(data, int(i)) for data, i in zip(records, indices, strict=True)]

    def _read_records(self, indices: np.ndarray) -> list[bytes]:
        return read_parts(
            self._ends,
            indices + self._first,
            lambda file, places: self._records.read(file, places.tolist()),
        )

    def stored_labels(self) -> Labels | None:
        """Labels from the file beside the records, if there is one of these labels."""
        if self._labels is None or not self._labels.is_usual:
            return None
        try:
            labels = label_index.read(self._label_file, num_examples=self._split_size)
        except FileNotFoundError:
            return None
        return labels.slice(self.part.start, self.part.stop)

    def _most_labels(self) -> int:
        try:
            counts = np.diff(label_index.read(self._label_file).offsets)
            return max(1, int(counts.max(initial=1)))
        except FileNotFoundError:
            return _MOST_LABELS

    def file_names(self) -> list[str] | None:
        """The feature `file_name`, where examples have one; reads all records."""
        names: list[str] = []
        for start in range(0, self.num_examples, _BLOCK):
            block = np.arange(start, min(start + _BLOCK, self.num_examples))
            for data in self._read_records(block):
                stored = self._parse(data).features.feature["file_name"].bytes_list.value
                if len(stored) != 1:
                    return None
                names.append(posixpath.basename(stored[0].decode(errors="surrogateescape")))
        return names

    def stamp(self) -> str:
        return files.stamp(self._files)

    def describe(self, index: int) -> str:
        file, record = locate(self._ends, index + self._first)
        return f"{self._files[file]}, record {record}"

    def _example(self, data: bytes, index: int) -> Example:
        try:
            feature = self._parse(data).features.feature
            image = only_value(feature["image"].bytes_list, "image")
            labels = () if self._labels is None else self._labels.labels(feature)
        except Exception:  # ValueError; protobuf's DecodeError
            with reading(self.describe(index)):
                raise
        weights = () if self._labels is None else self._labels.weights(feature)
        mask = self._labels.mask if self._labels else None
        maps = (only_value(feature[mask].bytes_list, mask),) if mask else ()
        return Example(image, labels, weights=weights, maps=maps)


def _check_image(folder: str, features: Any) -> None:
    """UserError unless records have one encoded image each; TFDS stores floats as bytes of RGBA."""
    stored = features["image"].get_serialized_info() if "image" in features else {}
    if (
        isinstance(stored, dict)
        or stored.shape
        or not np.dtype(stored.np_dtype).hasobject
        or np.issubdtype(features["image"].np_dtype, np.floating)
    ):
        text = " ".join(str(features).split())
        raise UserError(f"{folder}: `image` must be an encoded image of 8 or 16 bits: {text}.")


def find_folder(data_dir: str | None, *, where: str) -> str:
    """The folder with dataset_info.json: `data_dir`, or below it as <name>/<config>/<version>.

    Of several versions the highest, as in TFDS: a version is three numbers, so that a copy such as
    1.0.0.bak and one that was not finished, 1.0.0.incompleteX, are none.
    """
    field = f"{where}.data_dir"
    root = files.existing_folder(data_dir, field, cure=HOW_TO_GET)
    others: list[str] = []
    for depth in range(4):
        folders = [posixpath.dirname(path) for path in files.glob(root, "*/" * depth + INFO)]
        if depth == 0 and folders:  # it is named itself
            return folders[0]
        found = {folder: version for folder in folders if (version := _version(folder))}
        others += [folder for folder in folders if folder not in found]
        if len({posixpath.dirname(folder) for folder in found}) > 1:
            names = ", ".join(folder.removeprefix(root).strip("/") for folder in found)
            rule = f"holds several data sets: {names}. Name one."
            raise UserError(rule, field=field, value=data_dir)
        if found:
            return max(found, key=found.__getitem__)
    rule = f"holds no {INFO}, neither itself nor as <name>/<version>/{INFO}."
    if others:
        rule = f"holds {INFO} in {others[0]}, whose name is not a version such as 1.0.0."
    cure = "If it is a whole data set, name that folder." if others else HOW_TO_GET
    raise UserError(rule, field=field, value=data_dir, cure=cure)


def _version(folder: str) -> tuple[int, ...] | None:
    """(1, 0, 0) of a folder 1.0.0; None where the name is not a version."""
    match = _VERSION.fullmatch(posixpath.basename(folder))
    return match and tuple(map(int, match.groups()))


def find(root: Path, *, where: str) -> Path | None:
    """Like find_folder, but None if there is not a data set."""
    there = any(next(root.glob("*/" * depth + INFO), None) for depth in range(4))
    return Path(find_folder(str(root), where=where)) if there else None


def split_sizes(folder: str | Path) -> dict[str, int]:
    """The number of examples of each split; UserError if the metadata are damaged."""
    return {name: split.num_examples for name, split in read_info(str(folder)).splits.items()}


def _complete(folder: str, paths: list[str], sizes_bytes: list[int | None]) -> list[int]:
    missing = [path for path, size in zip(paths, sizes_bytes, strict=True) if size is None]
    if missing:
        first = posixpath.basename(missing[0])
        raise UserError(f"lacks {len(missing)} of {len(paths)} files, {first} first.", field=folder)
    return [size for size in sizes_bytes if size is not None]


def _content(folder: str) -> str:
    if NOTE not in [entry.name for entry in files.list_folder(folder)]:
        return ""
    path = files.join(folder, NOTE)
    with reading(path, cure="Prepare the data set again."):
        note = json.loads(files.read(path))
        if not isinstance(note, dict) or "content" not in note:
            raise ValueError("no hash of its content")
    return str(note["content"])
