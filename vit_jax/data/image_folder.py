"""Image files in folders: `<split>/<class>/*`, or `<class>/*` with a split by name.

In the second layout an image belongs to `val` if the SHA-256 of "<class>/<file>" says so (one in
ten), else to `train`: adding images moves none of the others. Examples are in the order of that
hash, so that a slice of a split holds all classes. Classes are sorted by name.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vit_jax.core.errors import UserError
from vit_jax.core.waiting import waiting_for
from vit_jax.data.example import Example
from vit_jax.data.exif import orientation
from vit_jax.data.label_index import Labels, single
from vit_jax.data.splits import base_name, resolve

_READ = frozenset({".jpg", ".jpeg", ".jpe", ".png", ".gif", ".bmp", ".webp"})
_NOT_READ = frozenset({".tif", ".tiff", ".heic", ".heif", ".avif", ".jxl", ".jp2", ".psd"})
_LAYOUTS = "<split>/<class>/image.jpg or <class>/image.jpg"


class _Image(NamedTuple):
    digest: str  # of its class and file name: the order
    path: Path
    class_name: str
    size_bytes: int


class ImageFolder:
    """A split of a folder of image files. EXIF orientation is honoured."""

    name = "image_folder"
    max_labels = 1

    def __init__(self, data_dir: str | None, split: str, *, where: str) -> None:
        images, classes = _images_of_split(_root(data_dir, where), split, where)
        self.class_names: tuple[str, ...] | None = tuple(classes)
        self.num_classes = len(classes)
        self.num_examples = len(images)
        labels = {name: label for label, name in enumerate(classes)}
        self._paths = [image.path for image in images]
        self._labels = [labels[image.class_name] for image in images]
        content = [f"{image.class_name}/{image.path.name} {image.size_bytes}" for image in images]
        self.fingerprint = hashlib.sha256("\n".join([*classes, *content]).encode()).hexdigest()

    def read(self, indices: np.ndarray) -> list[Example]:
        """Whole files."""
        return [self._read(int(index)) for index in indices]

    def stored_labels(self) -> Labels:
        """Of all images, by their folders."""
        return single(self._labels)

    def describe(self, index: int) -> str:
        """The file's path."""
        return str(self._paths[index])

    def _read(self, index: int) -> Example:
        try:
            with waiting_for(lambda: f"{self.describe(index)} (example {index})"):
                data = self._paths[index].read_bytes()
        except OSError as error:
            raise UserError(
                f"{self._paths[index]} cannot be read ({error.strerror}); it was there when the "
                "folder was listed."
            ) from error
        return Example(data, (self._labels[index],), orientation(data))


def _root(data_dir: str | None, where: str) -> Path:
    if data_dir is None:
        raise UserError(
            f'{where}.data_dir is not set; {where}.source="image_folder" needs it: a folder with '
            f"{_LAYOUTS}."
        )
    root = Path(data_dir).expanduser()
    if not root.is_dir():
        raise UserError(f"{where}.data_dir={data_dir} is not a folder. It should hold {_LAYOUTS}.")
    return root


def _images_of_split(root: Path, split: str, where: str) -> tuple[list[_Image], list[str]]:
    """(the images of the split in order, all class names)"""
    name = base_name(split, where=where)
    folders = {folder.name: folder for folder in _subfolders(root)}
    has_splits = any(_subfolders(folder) for folder in folders.values())
    if not has_splits:
        images = _images(root)
        is_val = {image.digest: int(image.digest[:8], 16) % 10 == 0 for image in images}
        by_split = {
            "train": [image for image in images if not is_val[image.digest]],
            "val": [image for image in images if is_val[image.digest]],
        }
        classes = sorted(folders)
    elif name in folders:
        by_split = {name: _images(folders[name])}
        # Labels are those of the training split: `val` may lack a class, but not shift the others.
        of_train = folders.get("train", folders[name])
        classes = sorted(folder.name for folder in _subfolders(of_train))
        unknown = sorted({image.class_name for image in by_split[name]} - set(classes))
        if unknown:
            raise UserError(
                f"{folders[name]} has the class {unknown[0]!r}, which {of_train} has not. Labels "
                f"are numbered by the classes of {of_train}; the folders must agree."
            )
    else:
        by_split = {folder_name: [] for folder_name in folders}
    part = resolve(split, {key: len(images) for key, images in by_split.items()}, where=where)
    return by_split[part.name][part.start : part.stop], classes


def _images(folder: Path) -> list[_Image]:
    """The images of `<class>/*` in the order of their hash."""
    images: list[_Image] = []
    classes = _subfolders(folder)
    for class_folder in classes:
        of_class = _images_of_class(class_folder)
        if not of_class:
            raise UserError(
                f"{class_folder} has no images ({_formats()}). Add some, or delete the folder: "
                "every folder there is a class."
            )
        images.extend(of_class)
    if not images:
        raise UserError(f"{folder} has no images. It should hold {_LAYOUTS} ({_formats()}).")
    return sorted(images)


def _images_of_class(folder: Path) -> list[_Image]:
    images = []
    for entry in os.scandir(folder):
        extension = Path(entry.name).suffix.lower()
        # os.path.isfile, since DirEntry.is_file raises where links lead in a circle.
        if entry.name.startswith(".") or not os.path.isfile(entry.path):
            continue
        if extension in _NOT_READ:
            raise UserError(
                f"{entry.path}: {extension} images are not read. Convert them to one of "
                f"{_formats()} with any image program, or remove them."
            )
        if extension in _READ:
            digest = hashlib.sha256(f"{folder.name}/{entry.name}".encode()).hexdigest()
            size_bytes = entry.stat().st_size
            images.append(_Image(digest, Path(entry.path), folder.name, size_bytes))
    return images


def _subfolders(folder: Path) -> list[Path]:
    with os.scandir(folder) as entries:
        names = [e.name for e in entries if os.path.isdir(e.path) and not e.name.startswith(".")]
    return [folder / name for name in sorted(names)]


def _formats() -> str:
    return ", ".join(sorted(_READ))
