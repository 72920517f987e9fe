"""Image files in folders: `<split>/<class>/*`, or `<class>/*` with a split by name.

In the second layout an image belongs to `val` if the SHA-256 of "<class>/<file>" says so (one in
ten), else to `train`: adding images moves none of the others. Examples are in the order of that
hash, so that a slice of a split holds all classes. Classes are sorted by name.
"""

from collections.abc import Iterable
from pathlib import Path, PurePath
from typing import NamedTuple

import numpy as np

from vit_jax.core.errors import UserError
from vit_jax.core.image_files import EXTENSIONS, TRAINING_EXTENSIONS, UNKNOWN_EXTENSIONS
from vit_jax.core.screen import format_bytes
from vit_jax.core.waiting import waiting_for
from vit_jax.data import files
from vit_jax.data.order.label_index import Labels, single
from vit_jax.data.reader import orientation
from vit_jax.data.source import Example, Source, digest
from vit_jax.data.sources.splits import ALL, Slice, base_name, resolve

_READ = frozenset(TRAINING_EXTENSIONS)
_NOT_READ = frozenset({*EXTENSIONS, *UNKNOWN_EXTENSIONS}) - _READ
_FORMATS = ", ".join(sorted(_READ))
_OF_TFDS = "dataset_info.json"
_LOOKED_AT = 100  # folders: enough for versions, and few among classes
_LAYOUTS = "<split>/<class>/image.jpg or <class>/image.jpg"
_SPLITS = frozenset({"train", "training", "val", "valid", "validation", "test", "eval"})
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
        images, classes, self.part = listed(self.location, split, where)
        self.class_names = tuple(classes)
        self.num_classes = len(classes)
        self.num_examples = len(images)
        labels = {name: label for label, name in enumerate(classes)}
        self._paths = [image.path for image in images]
        self._labels = [labels[image.class_name] for image in images]
        sizes = enumerate(image.size_bytes for image in images)
        self._too_large = {i: size for i, size in sizes if size > MAX_FILE_BYTES}
        content = [f"{image.class_name}/{image.name} {image.size_bytes}" for image in images]
        self.fingerprint = digest("\n".join([*classes, *content]))

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
    if not files.is_remote(root) and is_of_tfds(root):
        raise UserError(
            f"{where}.data_dir={data_dir} holds a data set of TFDS ({_OF_TFDS}), not folders of "
            f'images: set {where}.source="tfds".'
        )
    return root


def is_of_tfds(folder: str) -> bool:
    """Whether a local folder holds a data set of TFDS, or versions of one."""
    root = files.expanded(folder)
    listed = files.subfolders(root)[:_LOOKED_AT] if files.is_folder(root) else []
    versions = [name for name in listed if name[:1].isdigit()]
    return any(Path(root, name, _OF_TFDS).is_file() for name in ("", *versions))


def _images_of_split(root: str, split: str, where: str) -> tuple[list[_Image], list[str], Slice]:
    """(the images of the split in order, all class names, what they are of the split)"""
    wanted = base_name(split, where=where)
    folders = {name: files.join(root, name) for name in files.subfolders(root)}
    _check_names(root, folders)
    # Folders in a folder of images are ignored: they do not turn a class into a split.
    has_splits = any(
        files.subfolders(folder) and (name.lower() in _SPLITS or not _images_of_class(folder, ""))
        for name, folder in folders.items()
    )
    if not has_splits:
        if _SPLITS.issuperset(map(str.lower, folders)):  # these are not names of classes
            for folder in folders.values():
                if _images_of_class(folder, ""):
                    raise _no_classes(folder)
        images = _images(root)
        is_val = {image.order: int(image.order[:8], 16) % 10 == 0 for image in images}
        by_split = {
            "train": [image for image in images if not is_val[image.order]],
            "val": [image for image in images if is_val[image.order]],
            ALL: images,
        }
        classes = sorted(folders)
    elif wanted in folders:
        by_split = {wanted: _images(folders[wanted])}
        # The training split numbers the labels: `val` may lack a class, but not shift the others.
        of_train = folders.get("train", folders[wanted])
        classes = files.subfolders(of_train)
        _check_names(of_train, classes)
        unknown = sorted({image.class_name for image in by_split[wanted]} - set(classes))
        if unknown:
            raise UserError(
                f"{folders[wanted]} has the class {unknown[0]!r}, which {of_train} has not. Labels "
                f"are numbered by the classes of {of_train}; the folders must agree."
            )
    else:
        by_split = {folder_name: [] for folder_name in folders}
    part = resolve(split, {key: len(images) for key, images in by_split.items()}, where=where)
    return by_split[part.name][part.start : part.stop], classes, part


def _images_in_any_folders(
    root: str, split: str, where: str
) -> tuple[list[_Image], list[str], Slice]:
    """Like `_images_of_split`, but `<split>/*`, and any folders in `<split>`, will do too."""
    try:
        return _images_of_split(root, split, where)
    except UserError:
        wanted = base_name(split, where=where)
        folder = files.join(root, wanted)
        if not files.is_folder(folder):
            if wanted != ALL:
                raise
            folder = root
        groups = ["", *files.subfolders(folder)]
        images = [i for g in groups for i in _images_of_class(files.join(folder, g), g)]
        if not images:
            raise
    part = resolve(split, {wanted: len(images)}, where=where)
    return sorted(images)[part.start : part.stop], groups, part


def _images(folder: str) -> list[_Image]:
    """The images of `<class>/*` in the order of their hash."""
    images: list[_Image] = []
    class_names = files.subfolders(folder)
    _check_names(folder, class_names)
    for class_name in class_names:
        of_class = _images_of_class(files.join(folder, class_name), class_name)
        if not of_class:
            raise UserError(
                f"{files.join(folder, class_name)} has no images ({_FORMATS}). Add some, or "
                "delete the folder: every folder there is a class."
            )
        images.extend(of_class)
    if not images:
        if _images_of_class(folder, ""):
            raise _no_classes(folder)
        raise UserError(f"{folder} has no images. It should hold {_LAYOUTS} ({_FORMATS}).")
    return sorted(images)


def _no_classes(folder: str) -> UserError:
    place = files.join(folder, "<class>", "image.jpg")
    return UserError(
        f"The images of {folder} are directly in it: nothing says which class they belong to. Make "
        f"a folder for each class and put its images there: {place}."
    )


def _check_names(root: str, names: Iterable[str]) -> None:
    """UserError for a folder that no list of classes can name."""
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise UserError(
                f"{files.join(root, name)!r}: the name of this folder is not UTF-8. It names a "
                "class, or a split: rename it."
            ) from error


def _images_of_class(folder: str, class_name: str) -> list[_Image]:
    images = []
    for name, is_folder, size_bytes in files.list_folder(folder):
        path, extension = files.join(folder, name), PurePath(name).suffix.lower()
        if name.startswith(".") or is_folder:
            continue
        if extension in _NOT_READ:
            raise UserError(
                f"{path}: {extension} images are not read. Convert them to one of "
                f"{_FORMATS} with any image program, or remove them."
            )
        if extension in _READ:
            order = digest(f"{class_name}/{name}")
            images.append(_Image(order, path, class_name, name, size_bytes))
    return images
