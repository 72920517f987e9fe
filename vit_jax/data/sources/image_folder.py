"""Image files in folders: `<split>/<class>/*`, or `<class>/*` with a split by name.

In the second layout one in ten images of each class is `val`, by the SHA-256 of "<class>/<file>",
and the others are `train`: adding images moves few of the others. Examples are in the order of that
hash, so that a slice of a split holds all classes. Classes are sorted by name. Names are composed
(NFC), so that a copy on macOS has the same classes, splits and order.
"""

import collections
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import NamedTuple

import numpy as np

from vit_jax.core.class_names import normal, normal_names
from vit_jax.core.errors import UserError
from vit_jax.core.image_files import (
    EXTENSIONS,
    IN_HIDDEN,
    NO_FILE,
    TRAINING_EXTENSIONS,
    UNKNOWN_EXTENSIONS,
    PassedOver,
    extension,
    is_hidden,
)
from vit_jax.core.screen import format_bytes
from vit_jax.core.waiting import waiting_for
from vit_jax.data import files
from vit_jax.data.label_index import Labels, single
from vit_jax.data.reader import orientation
from vit_jax.data.source import Example, Source, digest
from vit_jax.data.sources.splits import ALL, Slice, base_name, resolve

_READ = frozenset(TRAINING_EXTENSIONS)
_NOT_READ = frozenset({*EXTENSIONS, *UNKNOWN_EXTENSIONS}) - _READ
_FORMATS = ", ".join(sorted(_READ))
_TFDS_INFO = "dataset_info.json"
_MAX_FOLDERS = 100  # folders: enough for versions, and few among classes
_LAYOUTS = "<split>/<class>/image.jpg or <class>/image.jpg"
_SPLITS = frozenset({"train", "training", "val", "valid", "validation", "test", "eval"})
# Words of names of folders that are not classes, such as train_images.
_NON_CLASS_WORDS = _SPLITS | {
    "image", "images", "img", "imgs", "photo", "photos", "picture", "pictures", "pics", "data",
    "dataset", "jpg", "jpeg", "png",
}  # fmt: skip
_TABLES = frozenset({".csv", ".tsv", ".jsonl", ".parquet", ".xlsx"})
# All of a file is read at once. A BMP of 100 million pixels, the largest that is decoded by
# default, has 400 MB.
MAX_FILE_BYTES = 512 * 2**20


class _Image(NamedTuple):
    order: str  # the SHA-256 of its class and file name
    path: str
    class_name: str
    name: str
    size_bytes: int


class ImageFolder(Source):
    """A split of a folder of image files. EXIF orientation is honoured."""

    name = "image_folder"

    def __init__(
        self, data_dir: str | None, split: str, *, where: str, labelled: bool = True
    ) -> None:
        """Without `labelled` images need not lie in folders of classes."""
        listed = _images_of_split if labelled else _images_in_any_folders
        self.location = find_root(data_dir, where=where)
        passed_over = PassedOver()
        try:
            images, classes, self.part = listed(self.location, split, where, passed_over)
        except OSError as error:
            raise UserError(
                f"{error.filename or self.location} cannot be read: {error.strerror or error}. "
                f"Make it readable, or take it out of {where}.data_dir."
            ) from error
        self.notes = passed_over.notes()
        self.class_names = tuple(classes)
        self.num_classes = len(classes)
        self.num_examples = len(images)
        labels = {name: label for label, name in enumerate(classes)}
        self._paths = [image.path for image in images]
        self._labels = [labels[image.class_name] for image in images]
        sizes = enumerate(image.size_bytes for image in images)
        self._too_large = {i: size for i, size in sizes if size > MAX_FILE_BYTES}
        content = [f"{image.class_name}/{image.name} {image.size_bytes}" for image in images]
        self.fingerprint = digest(normal("\n".join([*classes, *content])))

    def read(self, indices: np.ndarray) -> list[Example]:
        """Reads whole files."""
        return [self._read(int(index)) for index in indices]

    def stored_labels(self) -> Labels:
        """Labels of all images, by their folders."""
        return single(self._labels)

    def file_names(self) -> list[str]:
        """The names in their folders."""
        return [PurePath(path).name for path in self._paths]

    def stamp(self) -> str:
        """Sizes and times of the files."""
        return files.stamp(self._paths)

    def describe(self, index: int) -> str:
        """The file's path."""
        return self._paths[index]

    def _read(self, index: int) -> Example:
        if index in self._too_large:
            fault = (
                f"a file of {format_bytes(self._too_large[index])}, "
                f"above {format_bytes(MAX_FILE_BYTES)}"
            )
            return Example(b"", (self._labels[index],), fault=fault)
        try:
            with waiting_for(lambda: f"{self.describe(index)} (example {index})"):
                data = files.read(self._paths[index])
        except OSError as error:
            raise UserError(
                f"{self._paths[index]} cannot be read ({error.strerror}); it was there when the "
                "folder was listed."
            ) from error
        return Example(data, (self._labels[index],), orientation(data))


def find_root(data_dir: str | None, *, where: str) -> str:
    """The folder, once it exists and may hold images; else UserError."""
    if data_dir is None:
        raise UserError(
            f'{where}.data_dir is not set; {where}.source="image_folder" needs it: a folder with '
            f"{_LAYOUTS}."
        )
    root = files.expanded(data_dir)
    if not files.is_folder(root):
        raise UserError(f"{where}.data_dir={data_dir} is not a folder. It should hold {_LAYOUTS}.")
    if not files.is_remote(root) and is_tfds_folder(root):
        raise UserError(
            f"{where}.data_dir={data_dir} holds a data set of TFDS ({_TFDS_INFO}), not folders of "
            f'images: set {where}.source="tfds".'
        )
    return root


def is_tfds_folder(folder: str) -> bool:
    """Whether a local folder holds a data set of TFDS, or versions of one."""
    root = files.expanded(folder)
    listed = files.subfolders(root)[:_MAX_FOLDERS] if files.is_folder(root) else []
    versions = [name for name in listed if name[:1].isdigit()]
    return any(Path(root, name, _TFDS_INFO).is_file() for name in ("", *versions))


def _images_of_split(
    root: str, split: str, where: str, passed_over: PassedOver
) -> tuple[list[_Image], list[str], Slice]:
    """(images of the split in order, names of all classes, the slice of the split)."""
    wanted = base_name(split, where=where)
    folders = {name: files.join(root, name) for name in _subfolders(root)}
    _check_names(root, folders)
    # Folders in a folder of images are ignored: they do not turn a class into a split.
    has_images = {name: bool(_list_class(folder, "")) for name, folder in folders.items()}
    splits = {
        name
        for name, folder in folders.items()
        if _subfolders(folder) and (name.lower() in _SPLITS or not has_images[name])
    }
    _pass_over_beside(root, "beside the folders", passed_over)
    if not splits:
        _check_classes(root, sorted(folders))
        classes = sorted(map(normal, folders))
        images = _images(root, passed_over)
        held_out = _held_out(images)
        by_split = {
            "train": [image for image in images if image.order not in held_out],
            "val": [image for image in images if image.order in held_out],
            ALL: images,
        }
    elif wanted in folders:
        for name, folder in folders.items():
            if has_images[name] and name.lower() not in _SPLITS and name != wanted:
                inside = [image.path for image in _list_class(folder, "")]
                passed_over.add("in folders beside those of splits", *inside)
        _pass_over_beside(folders[wanted], "beside the folders of classes", passed_over)
        # The training split numbers the labels: `val` may lack a class, but not shift the others.
        train_folder = folders.get("train", folders[wanted])
        train_classes = _subfolders(train_folder)
        _check_names(train_folder, train_classes)
        if train_classes:
            _check_classes(train_folder, train_classes)
        classes = sorted(map(normal, train_classes))
        by_split = {wanted: _images(folders[wanted], passed_over)}
        unknown = sorted({image.class_name for image in by_split[wanted]} - set(classes))
        if unknown:
            raise UserError(
                f"{folders[wanted]} has the class {unknown[0]!r}, which {train_folder} has not. "
                f"Labels are numbered by the classes of {train_folder}; the folders must agree."
            )
    else:
        _check_layout(root, folders, has_images, wanted, where)
        by_split = {folder_name: [] for folder_name in folders}
    part = resolve(split, {key: len(images) for key, images in by_split.items()}, where=where)
    return by_split[part.name][part.start : part.stop], classes, part


def _images_in_any_folders(
    root: str, split: str, where: str, passed_over: PassedOver
) -> tuple[list[_Image], list[str], Slice]:
    """Like `_images_of_split`, but `<split>/*`, and any folders in `<split>`, will do too."""
    try:
        return _images_of_split(root, split, where, passed_over)
    except UserError:
        passed_over.clear()
        wanted = base_name(split, where=where)
        folder = files.join(root, wanted)
        if not files.is_folder(folder):
            if wanted != ALL:
                raise
            folder = root
        groups = ["", *_subfolders(folder)]
        images = [i for g in groups for i in _list_class(files.join(folder, g), g)]
        if not images:
            raise
    _pass_over_hidden(folder, passed_over)
    for group in groups[1:]:
        _list_class(files.join(folder, group), group, passed_over)
    part = resolve(split, {wanted: len(images)}, where=where)
    return sorted(images)[part.start : part.stop], sorted(set(map(normal, groups))), part


def _held_out(images: Sequence[_Image]) -> frozenset[str]:
    """Hashes of the images that are `val`: one in ten, in each class in proportion.

    Of a class with n of all N images in classes of more than one, n / N of a tenth of N, rounded
    down or up: up where most is cut off. A class of one image keeps it for training.
    """
    by_class: dict[str, list[str]] = collections.defaultdict(list)
    for image in images:
        by_class[image.class_name].append(image.order)
    # Those first that were `val` by this hash alone.
    candidates = [
        sorted(orders, key=lambda order: (int(order[:8], 16) % 10, order))
        for orders in by_class.values()
        if len(orders) > 1
    ]
    sizes = [len(orders) for orders in candidates]
    total = sum(sizes)
    number = -(-total // 10)
    quotas = [size * number // total for size in sizes]
    cut_off = sorted(
        range(len(sizes)), key=lambda c: (-(sizes[c] * number % total), candidates[c][0])
    )
    for c in cut_off[: number - sum(quotas)]:
        quotas[c] += 1
    return frozenset(
        order for orders, quota in zip(candidates, quotas, strict=True) for order in orders[:quota]
    )


def _images(folder: str, passed_over: PassedOver) -> list[_Image]:
    """The images of `<class>/*` in the order of their hash."""
    images: list[_Image] = []
    class_names = _subfolders(folder)
    _check_names(folder, class_names)
    for class_name in class_names:
        class_images = _list_class(files.join(folder, class_name), class_name, passed_over)
        if not class_images:
            deeper = list(_images_below(files.join(folder, class_name)))
            raise UserError(
                f"{files.join(folder, class_name)} has no images ({_FORMATS})"
                + (f" directly in it, only deeper: {deeper[0]}. Move" if deeper else ". Add")
                + " some there, or delete the folder: every folder there is a class."
            )
        images.extend(class_images)
    if not images:
        if _list_class(folder, ""):
            raise _no_classes(folder)
        raise UserError(f"{folder} has no images. It should hold {_LAYOUTS} ({_FORMATS}).")
    return sorted(images)


def _check_classes(folder: str, names: Sequence[str]) -> None:
    """UserError where the names are of folders that hold the images of all classes."""
    words = [re.findall(r"[a-z]+", name.lower()) for name in names]
    are_no_classes = all(each and _NON_CLASS_WORDS.issuperset(each) for each in words)
    if len(names) > 1 and not are_no_classes:
        return
    tables = [
        files.join(above, entry.name)
        for above in (folder, folder.rpartition("/")[0])
        for entry in (files.list_folder(above) if above else ())
        if entry.is_file and extension(entry.name) in _TABLES
    ]
    with_images = [path for name in names if _list_class(path := files.join(folder, name), "")]
    if not with_images:
        return
    if tables:
        raise UserError(
            f"{with_images[0]} holds images of all classes, it seems, which the table {tables[0]} "
            'tells. input.source="image_folder" reads classes from folders alone: put the images '
            f"of each class into a folder of its own, {_LAYOUTS}; or make a data set of a table of "
            f"files and labels: vit-jax prepare records --source={tables[0]}, for "
            'input.source="tfds".'
        )
    if are_no_classes:
        raise _no_classes(with_images[0])


def _check_layout(
    root: str, folders: dict[str, str], has_images: dict[str, bool], wanted: str, where: str
) -> None:
    """UserError for folders that are neither those of splits nor those of classes."""
    names = [name for name in folders if name.lower() not in _SPLITS]
    if len(folders) == 1 and names:
        raise UserError(
            f"{where}.split: {root} has no split {wanted!r}, but one folder, {names[0]!r}, with "
            f"folders in it. If that is the data set, set {where}.data_dir={folders[names[0]]}."
        )
    direct = [name for name in names if has_images[name]]
    nested = [name for name in names if not has_images[name]]
    if direct and nested:
        raise UserError(
            f"{folders[direct[0]]} holds images, as a class does, and {folders[nested[0]]} folders "
            "of images, as a split does. All must be <class>/*, or all <split>/<class>/*."
        )


def _no_classes(folder: str) -> UserError:
    place = files.join(folder, "<class>", "image.jpg")
    return UserError(
        f"The images of {folder} are directly in it: nothing says which class they belong to. Make "
        f"a folder for each class and put its images there: {place}."
    )


def _check_names(root: str, names: Collection[str]) -> None:
    """UserError for a folder that no list of classes can name, and for two that have one name."""
    normal_names(names, root)
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise UserError(
                f"{files.join(root, name)!r}: the name of this folder is not UTF-8. It names a "
                "class, or a split: rename it."
            ) from error


def _subfolders(folder: str) -> list[str]:
    return [name for name in files.subfolders(folder) if not is_hidden(name)]


def _list_class(
    folder: str, class_name: str, passed_over: PassedOver | None = None
) -> list[_Image]:
    images, others = [], PassedOver() if passed_over is None else passed_over
    for name, is_folder, size_bytes, is_file in files.list_folder(folder):
        path = files.join(folder, name)
        if is_folder:
            if passed_over is not None:
                others.add("in folders inside a class", *_images_below(path))
        elif is_hidden(name):
            others.add_named(path)
        elif not is_file:
            others.add(NO_FILE, path)
        elif extension(name) in _NOT_READ:
            raise UserError(
                f"{path}: {extension(name)} images are not read. Convert them to one of "
                f"{_FORMATS} with any image program, or remove them."
            )
        elif extension(name) in _READ:
            in_class = normal(class_name)
            order = digest(normal(f"{in_class}/{name}"))
            images.append(_Image(order, path, in_class, name, size_bytes))
        else:
            others.add_named(path)
    return images


def _pass_over_beside(folder: str, where: str, passed_over: PassedOver) -> None:
    """Notes the images beside the folders in `folder`, and in those that are hidden."""
    beside = [
        entry.name for entry in files.list_folder(folder) if entry.is_file and _is_image(entry.name)
    ]
    passed_over.add(where, *(files.join(folder, name) for name in beside))
    _pass_over_hidden(folder, passed_over)


def _pass_over_hidden(folder: str, passed_over: PassedOver) -> None:
    for name, is_folder, *_ in files.list_folder(folder):
        if is_folder and is_hidden(name):
            inside = _images_below(files.join(folder, name))
            passed_over.add(IN_HIDDEN, *inside)


def _is_image(name: str) -> bool:
    return extension(name) in _READ | _NOT_READ


def _images_below(folder: str) -> Iterator[str]:
    """Paths of files that are named like images, at any depth; links are not followed.

    Of a remote folder only what is directly in it.
    """
    walk: Iterable[tuple[str, list[str], list[str]]] = os.walk(folder)
    if files.is_remote(folder):
        walk = [(folder, [], [entry.name for entry in files.list_folder(folder) if entry.is_file])]
    for inside, _, names in walk:
        yield from (files.join(inside, name) for name in sorted(names) if _is_image(name))
