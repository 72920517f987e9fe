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
from pathlib import Path
from typing import Any

import numpy as np

from vit_jax.core.errors import UserError
from vit_jax.data import files
from vit_jax.data.order import label_index
from vit_jax.data.order.label_index import Labels
from vit_jax.data.source import Example, Source, digest
from vit_jax.data.sources import example_proto
from vit_jax.data.sources.caches import FileCache, copies
from vit_jax.data.sources.records import ArrayRecords, TFRecords
from vit_jax.data.sources.splits import Slice, resolve
from vit_jax.data.sources.tfds_writer import NOTE, WEIGHTS

INFO = "dataset_info.json"
FEATURES = "features.json"

HOW_TO_GET = (
    'To get a data set, for example CIFAR-10: python -c "import tensorflow_datasets as tfds; '
    "tfds.builder('cifar10', data_dir='DIR').download_and_prepare()\"; then set "
    "data_dir=DIR/cifar10. ImageNet (imagenet2012) has to be downloaded by hand first: its tar "
    "files, ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar, into DIR/downloads/manual."
)

# "type" with "content" beside it is how TFDS wrote it before 4.5. It takes both spellings.
_NAMES_CODE = ("pythonClassName", "python_class_name", "type")
_OF_TFDS = re.compile(r"tensorflow_datasets(\.[A-Za-z_]\w*)+")


def read_info(folder: str) -> Any:
    """tfds.core.DatasetInfo of the data set in `folder`, without class names.

    UserError if the files are missing or damaged, or name Python code that is not of TFDS.
    """
    try:
        parts = {name: files.read(files.join(folder, name)) for name in (INFO, FEATURES)}
        _check_code(f"{folder}/{FEATURES}", json.loads(parts[FEATURES].decode()))
        with tempfile.TemporaryDirectory() as copy:
            for name, content in parts.items():
                Path(copy, name).write_bytes(content)
            import tensorflow_datasets

            return tensorflow_datasets.builder_from_directory(copy).info
    except UserError:
        raise
    except Exception as error:  # whatever tfds raises for damaged metadata
        raise UserError(
            f"{folder}: {INFO} or {FEATURES} is missing or damaged ({error}). {HOW_TO_GET}"
        ) from error


def _check_code(where: str, features: Any) -> None:
    """UserError if anything in it, at whatever depth, names a class that is not of TFDS."""
    inside = [features]
    while inside:
        value = inside.pop()
        if isinstance(value, list):
            inside.extend(value)
        elif isinstance(value, dict):
            inside.extend(value.values())
            for key in _NAMES_CODE:
                name = value.get(key)
                if not isinstance(name, str) or (key == "type" and "content" not in value):
                    continue
                if not _OF_TFDS.fullmatch(name):
                    raise UserError(
                        f"{where} names the class {name!r}: to read the data set would run Python "
                        "code from outside of TFDS. Only features of tensorflow_datasets are read: "
                        "write the data set again with those, such as tfds.features.Image and "
                        "ClassLabel."
                    )
            if isinstance(value.get("json"), str):  # a feature that is written inside a string
                inside.append(json.loads(value["json"]))


def class_names(folder: str, feature: str, num_classes: int) -> tuple[str, ...] | None:
    """The lines of `<feature>.labels.txt`, the names of the classes by their numbers.

    None if there is no such file; `num_classes` 0: as many as there are lines. UserError if it has
    another number of them, twice the same, or is not UTF-8.
    """
    path = files.join(folder, f"{feature}.labels.txt")
    try:
        text = files.read(path).decode()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UserError(
            f"{path} is not UTF-8: line {line} has the byte 0x{error.object[error.start]:02x}. "
            "Convert it, from Latin-1 for example: iconv -f latin1 -t utf8."
        ) from error
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    # Spaces belong to the names of folders; empty lines, such as the last one, name nothing.
    names = [line for line in lines if line]
    if num_classes and len(names) != num_classes:
        raise UserError(
            f"{path} has the names of {len(names):,} classes, but {FEATURES} says that there are "
            f"{num_classes:,}: names would belong to other classes. Give it one line a class, in "
            "the order of their numbers, or delete it."
        )
    places: dict[str, int] = {}
    for number, name in enumerate(names):
        if places.setdefault(name, number) != number:
            raise UserError(
                f"{path}: classes {places[name]} and {number} are both named {name!r}. Give each a "
                "name of its own, or delete the file."
            )
    return tuple(names)


_MOST_LABELS = 64  # of an example, where `labels` is a list and nothing says how many it has


_FORMATS: dict[str, type[ArrayRecords] | type[TFRecords]] = {
    "tfrecord": TFRecords,
    "array_record": ArrayRecords,
}


class Tfds(Source):
    """A split of a data set whose examples have `image` and `label` (or the list `labels`).

    They may also have `label_weights`.
    """

    part: Slice

    def __init__(
        self,
        data_dir: str | None,
        split: str,
        num_classes: int | None,
        *,
        where: str,
        cache: FileCache | None = None,
        label_weights: bool = True,
    ) -> None:
        """`num_classes` is needed where the metadata do not say how many there are.

        `label_weights`: whether they are read, if the data set has some. `where` is the config's
        section that asks; `cache`, if any, is where the files are copied to before they are read.
        """
        folder = find_folder(data_dir, where=where)
        info = read_info(folder)
        self.name = info.name
        sizes = {name: s.num_examples for name, s in info.splits.items()}
        part = resolve(split, sizes, where=where)
        self.part = part
        self.num_examples = part.num_examples

        published = info.splits[part.name]
        paths = [files.join(folder, Path(path).name) for path in published.filepaths]
        counts = list(published.shard_lengths)
        if min(counts) < 0:
            raise UserError(f"{folder}: {INFO} is damaged: a file of {min(counts)} examples.")
        sizes_bytes = files.sizes(paths)
        self.fingerprint = _fingerprint(folder, info, part, paths, sizes_bytes, counts)
        # Only the files that a slice touches are looked at.
        ends = np.cumsum(counts)
        first, last = np.searchsorted(ends, [part.start, part.stop - 1], side="right")
        touched = slice(first, last + 1)
        self._files, counts = paths[touched], counts[touched]
        self._first = part.start - int(ends[touched][0] - counts[0])
        self._ends = np.cumsum(counts)
        present = _complete(folder, self._files, sizes_bytes[touched])
        if cache is not None:
            self._files = copies(cache, info.name, self._files, present)
        if (kind := info.file_format.value) not in _FORMATS:
            raise UserError(
                f"{folder} is written in {kind!r}; only {' and '.join(_FORMATS)} are read."
            )
        self._records = _FORMATS[kind](self._files, counts)

        self._label_file = files.join(folder, label_index.file_name(part.name))
        self._split_size = sizes[part.name]
        self._label_key, label = _label_feature(folder, info.features)
        self.weighted = label_weights and WEIGHTS in info.features
        if self.weighted:
            _check_weights(folder, info.features[WEIGHTS])
        self.max_labels = 1 if self._label_key == "label" else self._most_labels()
        self.num_classes, self.class_names = _classes(folder, self._label_key, label, num_classes)
        self._parse = example_proto.parser()

    def read(self, indices: np.ndarray) -> list[Example]:
        """Reads the examples file by file."""
        examples: dict[int, Example] = {}
        of_files, records = self._locate(indices)
        for file in np.unique(of_files):
            chosen = np.flatnonzero(of_files == file)
            stored = self._records.read(int(file), records[chosen].tolist())
            for place, data in zip(chosen, stored, strict=True):
                examples[int(place)] = self._example(data, int(indices[place]))
        return [examples[place] for place in range(len(indices))]

    def stored_labels(self) -> Labels | None:
        """Labels from the file beside the records, if there is one."""
        try:
            labels = label_index.read(self._label_file)
        except FileNotFoundError:
            return None
        if labels.num_examples != self._split_size:
            raise UserError(
                f"{self._label_file} has the labels of {labels.num_examples:,} examples, but the "
                f"split has {self._split_size:,}. Delete it: then the labels are read from the "
                "records, once."
            )
        return labels.slice(self.part.start, self.part.stop)

    def _most_labels(self) -> int:
        try:
            return max(1, label_index.most_labels(self._label_file))
        except FileNotFoundError:
            return _MOST_LABELS

    def stamp(self) -> str:
        """Sizes and times of the files."""
        return files.stamp(self._files)

    def describe(self, index: int) -> str:
        """The file and the record in it."""
        of_files, records = self._locate(np.array([index]))
        return f"{self._files[of_files[0]]}, record {records[0]}"

    def _locate(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(files, records in them), int64 [n] each."""
        positions = indices + self._first
        of_files = np.searchsorted(self._ends, positions, side="right")
        starts = np.concatenate([[0], self._ends])[of_files]
        return of_files, positions - starts

    def _example(self, data: bytes, index: int) -> Example:
        from google.protobuf.message import DecodeError

        try:
            feature = self._parse(data).features.feature
        except DecodeError as error:
            raise UserError(f"{self.describe(index)}: not a tf.train.Example ({error}).") from error
        image, labels = feature["image"].bytes_list.value, feature[self._label_key].int64_list.value
        if len(image) != 1 or (self._label_key == "label" and len(labels) != 1):
            raise UserError(
                f"{self.describe(index)}: {len(image)} values of `image` and {len(labels)} of "
                f"`{self._label_key}`; one of each must be there."
            )
        return Example(image[0], tuple(labels), weights=self._weights(feature))

    def _weights(self, feature: Any) -> tuple[float, ...]:
        if not self.weighted:
            return ()
        stored = feature[WEIGHTS]
        return tuple(stored.float_list.value or stored.int64_list.value)


def find_folder(data_dir: str | None, *, where: str) -> str:
    """The folder with dataset_info.json: `data_dir`, or below it as <name>/<config>/<version>.

    The highest of several versions. UserError if there is none, or more than one data set.
    """
    if data_dir is None:
        raise UserError(
            f'{where}.data_dir is not set; {where}.source="tfds" needs it. {HOW_TO_GET}'
        )
    root = files.expanded(data_dir)
    if not files.is_folder(root):
        raise UserError(f"{where}.data_dir={data_dir} is not a folder. {HOW_TO_GET}")
    for depth in range(4):
        paths = files.glob(root, "*/" * depth + INFO)
        folders = [posixpath.dirname(path) for path in paths]
        if len({posixpath.dirname(folder) for folder in folders} if depth else folders) > 1:
            names = ", ".join(folder.removeprefix(root).strip("/") for folder in folders)
            raise UserError(
                f"{where}.data_dir={data_dir} holds several data sets: {names}. Name one."
            )
        if folders:
            version = lambda folder: [
                int(number) if number.isdigit() else -1
                for number in posixpath.basename(folder).split(".")
            ]
            return max(folders, key=version)
    raise UserError(
        f"{where}.data_dir={data_dir} holds no {INFO}, neither itself nor as "
        f"<name>/<version>/{INFO}. {HOW_TO_GET}"
    )


def find(root: Path, *, where: str) -> Path | None:
    """Like find_folder, but None if there is not a data set."""
    there = any(next(root.glob("*/" * depth + INFO), None) for depth in range(4))
    return Path(find_folder(str(root), where=where)) if there else None


def split_sizes(folder: str | Path) -> dict[str, int]:
    """The number of examples of each split; UserError if the metadata are damaged."""
    return {name: split.num_examples for name, split in read_info(str(folder)).splits.items()}


def _complete(folder: str, paths: list[str], sizes_bytes: list[int | None]) -> list[int]:
    """The files' sizes. UserError if files are missing."""
    missing = [path for path, size in zip(paths, sizes_bytes, strict=True) if size is None]
    if missing:
        raise UserError(
            f"{folder}: {len(missing)} of {len(paths)} files are missing, the first is "
            f"{posixpath.basename(missing[0])}. Get the data set again."
        )
    return [size for size in sizes_bytes if size is not None]


def _label_feature(folder: str, features: Any) -> tuple[str, Any]:
    """ "label" or "labels", and the feature of one label."""
    keys = [key for key in ("label", "labels") if key in features]
    if "image" not in features or not keys:
        raise UserError(
            f"{folder}: examples have the features {', '.join(features)}; image, and label or "
            "labels, are needed."
        )
    feature = features[keys[0]]
    return keys[0], getattr(feature, "feature", feature)


def _check_weights(folder: str, feature: Any) -> None:
    """UserError if records have no list of numbers for them: then each label would weigh 1."""
    stored = feature.get_serialized_info()  # a dict where it consists of others
    if isinstance(stored, dict) or np.dtype(stored.np_dtype).hasobject or len(stored.shape) > 1:
        text = " ".join(str(feature).split())
        raise UserError(
            f"{folder}: label_weights is stored as {text}; it must be a list of numbers that are "
            "not encoded, one for each label. Correct the data, or set input.label_weights=false: "
            "then every label weighs 1."
        )


def _classes(
    folder: str, key: str, label: Any, declared: int | None
) -> tuple[int, tuple[str, ...] | None]:
    """(number of classes, their names if published)."""
    published: int | None = getattr(label, "num_classes", None)
    names = None if published is None else class_names(folder, key, published)
    published = published or len(names or ())
    if not published:
        if declared is None:
            raise UserError(f"{folder} does not say how many classes it has; set input.num_classes")
        return declared, None
    if names and names != tuple(str(i) for i in range(published)):  # digits are the numbers
        return published, names
    # Without names a larger number is possible, a smaller one is not.
    return max(declared or 0, published), None


def _fingerprint(
    folder: str,
    info: Any,
    part: Slice,
    paths: list[str],
    sizes_bytes: list[int | None],
    counts: list[int],
) -> str:
    """A hash of names, sizes and counts, and of the hash of all examples if prepare has left one.

    The records are not read.
    """
    names = [posixpath.basename(path) for path in paths]
    content = [info.name, str(info.version), list(part), names, sizes_bytes, counts]
    if NOTE in [entry.name for entry in files.list_folder(folder)]:
        path = files.join(folder, NOTE)
        try:
            content.append(str(json.loads(files.read(path))["content"]))
        except (ValueError, KeyError, TypeError) as error:
            why = f"is damaged ({error!r}). Prepare the data set again."
            raise UserError(f"{path} {why}") from error
    return digest(json.dumps(content))
