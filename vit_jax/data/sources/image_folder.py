"""Image files in folders: `<split>/<class>/*`, or `<class>/*` with a split by name.

In the second layout one in ten images of each class is `val`, by the SHA-256 of "<class>/<file>",
and the others are `train`: adding images moves few of the others. Examples are in the order of that
hash, so that a slice of a split holds all classes. Classes are sorted by name. Names are composed
(NFC), so that a copy on macOS has the same classes, splits and order.
"""

import abc
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path, PurePath

import numpy as np

from vit_jax.core import arrays
from vit_jax.core.arrays import Pixels
from vit_jax.core.class_names import normal, normal_names
from vit_jax.core.errors import UserError, reading
from vit_jax.core.image_files import (
    EXTENSIONS,
    IN_HIDDEN,
    NO_FILE,
    OPENED,
    UNKNOWN_EXTENSIONS,
    PassedOver,
    extension,
    is_hidden,
)
from vit_jax.core.screen import format_bytes
from vit_jax.core.waiting import waiting_for
from vit_jax.data import files
from vit_jax.data.reader import orientation
from vit_jax.data.source import Example, Labels, Request, Source, digest, single
from vit_jax.data.sources.folder_index import PREFIX, FolderIndex, Image, Listing
from vit_jax.data.sources.split_names import (
    BY_NAMES,
    HELD_OUT,
    KEYWORDS,
    splits_in_names,
    with_val,
)
from vit_jax.data.sources.splits import ALL, base_name, resolve

READ = frozenset((*EXTENSIONS, *arrays.EXTENSIONS))
FORMATS = ", ".join((*OPENED, "NPY", "NPZ"))
_TFDS_INFO = "dataset_info.json"
_MAX_FOLDERS = 100  # folders: enough for versions, and few among classes
_LAYOUTS = "<split>/<class>/image.jpg or <class>/image.jpg"
_SPLITS = frozenset(word for words in KEYWORDS.values() for word in words)
# Words of names of folders that are not classes, such as train_images.
_NON_CLASS_WORDS = _SPLITS | {
    "image", "images", "img", "imgs", "photo", "photos", "picture", "pictures", "pics", "data",
    "dataset", "jpg", "jpeg", "png",
}  # fmt: skip
_TABLES = frozenset({".csv", ".tsv", ".jsonl", ".parquet", ".xlsx"})
# Tables with the labels of the images beside or below them, as Hugging Face's `datasets` has them.
METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet", "labels.jsonl")
# All of a file is read at once. A BMP of 100 million pixels, the largest that is decoded by
# default, has 400 MB.
MAX_FILE_BYTES = 512 * 2**20


class NoClassFolders(UserError):
    """Images lie in folders that are not those of classes."""


class ImageFiles(Source):
    """Images that are files of their own. EXIF orientation is honoured."""

    @abc.abstractmethod
    def file(self, index: int) -> tuple[str, tuple[int, ...], int | None]:
        """(path, labels, bytes when it was listed) of an image; None if it was not there."""

    def read(self, indices: np.ndarray) -> list[Example]:
        return [read_image(index, *self.file(index)) for index in indices.tolist()]

    def describe(self, index: int) -> str:
        return self.file(index)[0]

    def file_names(self) -> list[str]:
        return [PurePath(self.describe(index)).name for index in range(self.num_examples)]

    def stamp(self) -> str:
        listed = map(self.file, range(self.num_examples))
        return files.stamp([path for path, _, size_bytes in listed if size_bytes is not None])


class ImageFolder(ImageFiles):
    """A split of a folder of image files."""

    name = "image_folder"
    class_names: tuple[str, ...]

    def __init__(self, r: Request) -> None:
        """Without `r.labelled` images need not lie in folders of classes."""
        split, where = r.split, r.where
        self.location = find_root(r.data_dir, where=where)
        # Without labels the folders that are read depend on the slice.
        wanted = base_name(split, where=where) if r.labelled else f"{split} without labels"
        index = FolderIndex(self.location, wanted, code=__file__)
        if (listing := index.read()) is None:
            lister = _Lister()
            images_of = _images_of_split if r.labelled else _images_in_any_folders
            try:
                listing = images_of(self.location, split, where, lister)
            except OSError as error:
                with reading(error.filename or self.location):
                    raise
            if not lister.has_links:
                index.write(listing, lister.folders)
        self.part = resolve(split, listing.split_sizes, where=where)
        self._listing = listing.slice(self.part.start, self.part.stop)
        self.notes = tuple(listing.notes)
        self.class_names = tuple(listing.class_names)
        self.num_classes = len(self.class_names)
        self.num_examples = self.part.num_examples
        self.fingerprint = self._listing.fingerprint()
        self.pixels = form_of(self.describe(0))

    def file(self, index: int) -> tuple[str, tuple[int, ...], int]:
        path, label, size_bytes = self._listing.image(index)
        return path, (label,), size_bytes

    def stored_labels(self) -> Labels:
        return single(self._listing.image_labels())


def read_image(index: int, path: str, labels: tuple[int, ...], size_bytes: int | None) -> Example:
    """Reads example `index` from a file, which had this size when it was listed."""
    if size_bytes is None:
        return Example(b"", labels, fault="there is no such file")
    if size_bytes > MAX_FILE_BYTES:
        fault = f"a file of {format_bytes(size_bytes)}, above {format_bytes(MAX_FILE_BYTES)}"
        return Example(b"", labels, fault=fault)
    with reading(path), waiting_for(lambda: f"{path} (example {index})"):
        data = files.read(path)
    return Example(data, labels, orientation(data))


def form_of(path: str) -> Pixels:
    """The form of a data set's images, by the first of them. UserError if that is a bad array."""
    if extension(path) not in arrays.EXTENSIONS:
        return arrays.RGB
    try:
        data = read_image(0, path, (), 0).image
        if arrays.is_photo(data):
            return arrays.RGB
        return arrays.form(arrays.decode(data, MAX_FILE_BYTES))
    except Exception as error:  # decoders of damaged files raise anything
        raise UserError(f"{path}, the first image, cannot be read: {error}.") from error


def find_root(data_dir: str | None, *, where: str) -> str:
    """The folder, once it exists and may hold images; else UserError."""
    field, cure = f"{where}.data_dir", f"It should hold {_LAYOUTS}."
    if extension(data_dir or "") in _TABLES:
        cure = f'For a table of images and labels set {where}.source="image_table".'
    root = files.existing_folder(data_dir, field, cure=cure)
    if not files.is_remote(root) and is_tfds_folder(root):
        rule = f"holds a data set of TFDS ({_TFDS_INFO}), not folders of images:"
        raise UserError(rule, field=field, value=data_dir, cure=f'set {where}.source="tfds".')
    return root


def is_tfds_folder(folder: str) -> bool:
    """Returns whether a local folder holds a data set of TFDS, or versions of one."""
    root = files.expanded(folder)
    listed = files.subfolders(root)[:_MAX_FOLDERS] if files.is_folder(root) else []
    versions = [name for name in listed if name[:1].isdigit()]
    return any(Path(root, name, _TFDS_INFO).is_file() for name in ("", *versions))


class _Lister(PassedOver):
    """Lists folders; remembers which, and which of their files are not read."""

    def __init__(self) -> None:
        super().__init__()
        self.folders: set[str] = set()
        self.has_links = False  # to files, or to nothing: they change without their folder

    def entries(self, folder: str) -> list[files.Entry]:
        """All entries by name."""
        self.folders.add(folder.rstrip("/"))
        entries = files.list_folder(folder)
        self.has_links |= any(entry.is_link and not entry.is_folder for entry in entries)
        return entries

    def subfolders(self, folder: str) -> list[str]:
        """Sorted names of the subfolders that are the user's own."""
        self.folders.add(folder)
        return [name for name in files.subfolders(folder) if not is_hidden(name)]

    def images(self, folder: str, class_name: str, *, notes: bool = False) -> list[Image]:
        """The images directly in a folder, by name; with `notes` adds what else is in it."""
        images, others = [], self if notes else PassedOver()
        in_class = normal(class_name)
        for name, is_folder, size_bytes, is_file, _ in self.entries(folder):
            kind = extension(name)
            if is_folder:
                if notes:
                    inside = self.images_below(files.join(folder, name))
                    others.add("in folders inside a class", *inside)
            elif is_hidden(name):
                others.add_named(files.join(folder, name))
            elif not is_file:
                others.add(NO_FILE, files.join(folder, name))
            elif kind in UNKNOWN_EXTENSIONS:
                cure = f"Convert it to one of {FORMATS}, or move it away."
                raise UserError(f"is not read: {kind}.", field=files.join(folder, name), cure=cure)
            elif kind in READ:
                order = digest(normal(f"{in_class}/{name}"))
                images.append(Image(order, folder.rstrip("/"), in_class, name, size_bytes))
            else:
                others.add_named(files.join(folder, name))
        return images

    def pass_over_beside(self, folder: str, where: str) -> None:
        """Notes the images and dead links beside the folders in `folder`, and what is hidden."""
        for name, is_folder, _, is_file, is_link in self.entries(folder):
            if is_file and _is_image(name):
                self.add(where, files.join(folder, name))
            elif is_link and not is_folder and not is_file and not is_hidden(name):  # a class?
                self.add(NO_FILE, files.join(folder, name))
        self.pass_over_hidden(folder)

    def pass_over_hidden(self, folder: str) -> None:
        """Notes the images in the hidden folders in `folder`."""
        for name, is_folder, *_ in self.entries(folder):
            if is_folder and is_hidden(name):
                self.add(IN_HIDDEN, *self.images_below(files.join(folder, name)))

    def images_below(self, folder: str) -> Iterator[str]:
        """Paths of files that are named like images, at any depth; links are not followed.

        Of a remote folder only what is directly in it.
        """
        walk: Iterable[tuple[str, list[str], list[str]]] = os.walk(folder)
        if files.is_remote(folder):
            walk = [(folder, [], [entry.name for entry in self.entries(folder) if entry.is_file])]
        for inside, _, names in walk:
            self.folders.add(inside)
            yield from (files.join(inside, name) for name in sorted(names) if _is_image(name))


def _images_of_split(root: str, split: str, where: str, lister: _Lister) -> Listing:
    wanted = base_name(split, where=where)
    folders = {name: files.join(root, name) for name in lister.subfolders(root)}
    _check_names(root, folders)
    # Folders in a folder of images are ignored: they do not turn a class into a split.
    has_images = {name: bool(lister.images(folder, "")) for name, folder in folders.items()}
    splits = {
        name
        for name, folder in folders.items()
        if lister.subfolders(folder) and (name.lower() in _SPLITS or not has_images[name])
    }
    lister.pass_over_beside(root, "beside the folders")
    notes: tuple[str, ...] = ()
    if not splits:
        _check_classes(root, root, sorted(folders), lister)
        classes = sorted(map(normal, folders))
        images = _images(root, lister)
        by_split, note = _by_name_or_hash(images, f"{where}.data_dir", root)
        notes = (note,)
    elif wanted in folders:
        for name, folder in folders.items():
            if has_images[name] and name.lower() not in _SPLITS and name != wanted:
                inside = [image.path for image in lister.images(folder, "")]
                lister.add("in folders beside those of splits", *inside)
        lister.pass_over_beside(folders[wanted], "beside the folders of classes")
        # The training split numbers the labels: `val` may lack a class, but not shift the others.
        train_folder = folders.get("train", folders[wanted])
        train_classes = lister.subfolders(train_folder)
        _check_names(train_folder, train_classes)
        if train_classes:
            _check_classes(root, train_folder, train_classes, lister)
        classes = sorted(map(normal, train_classes))
        by_split = {wanted: _images(folders[wanted], lister)}
        unknown = sorted({image.class_name for image in by_split[wanted]} - set(classes))
        if unknown:
            rule = f"has the class {unknown[0]!r}, unlike {train_folder}, which numbers the labels."
            raise UserError(rule, field=folders[wanted])
    else:  # which `resolve` refuses
        by_split = {folder_name: [] for folder_name in folders}
    sizes = {key: len(images) for key, images in by_split.items()}
    resolve(split, sizes, where=where)
    notes = (*lister.notes(), *notes * (wanted == "train"))
    return Listing.pack(by_split[wanted], classes, sizes, notes)


def _images_in_any_folders(root: str, split: str, where: str, lister: _Lister) -> Listing:
    """Like `_images_of_split`, but `<split>/*`, and any folders in `<split>`, will do too."""
    try:
        return _images_of_split(root, split, where, lister)
    except UserError:
        lister.clear()
        wanted = base_name(split, where=where)
        folder = files.join(root, wanted)
        if not files.is_folder(folder):
            if wanted != ALL:
                raise
            folder = root
        groups = ["", *lister.subfolders(folder)]
        images = [i for g in groups for i in lister.images(files.join(folder, g), g)]
        if not images:
            raise
    lister.pass_over_hidden(folder)
    for group in groups[1:]:
        lister.images(files.join(folder, group), group, notes=True)
    sizes = {wanted: len(images)}
    resolve(split, sizes, where=where)
    return Listing.pack(sorted(images), sorted(set(map(normal, groups))), sizes, lister.notes())


def _by_name_or_hash(
    images: Sequence[Image], field: str, root: str
) -> tuple[dict[str, list[Image]], str]:
    by_path = splits_in_names([image.path for image in images], field=field, value=root)
    by_split: dict[str, list[Image]] = {}
    for image in images:
        by_split.setdefault(by_path.get(image.path, ALL), []).append(image)
    if not by_path:
        classes = [image.class_name for image in images]
        by_split = with_val(images, [image.order for image in images], classes)
    return {**by_split, ALL: list(images)}, BY_NAMES if by_path else HELD_OUT


def _images(folder: str, lister: _Lister) -> list[Image]:
    images: list[Image] = []
    class_names = lister.subfolders(folder)
    _check_names(folder, class_names)
    # What stays is made first: among the images it would keep their memory from being freed.
    class_folders = [files.join(folder, class_name) for class_name in class_names]
    for class_name, class_folder in zip(class_names, class_folders, strict=True):
        class_images = lister.images(class_folder, class_name, notes=True)
        if not class_images:
            deeper = next(lister.images_below(class_folder), "")
            only = f", only deeper: {deeper}" if deeper else ""
            rule = f"has no images ({FORMATS}) directly in it{only}: every folder there is a class."
            raise UserError(rule, field=class_folder)
        images.extend(class_images)
    if not images:
        if lister.images(folder, ""):
            raise _no_classes(folder)
        raise UserError(f"{folder} has no images. It should hold {_LAYOUTS} ({FORMATS}).")
    return sorted(images)


def _check_classes(root: str, folder: str, names: Sequence[str], lister: _Lister) -> None:
    """Refuses folders in `folder` that hold the images of all classes; `root`: the data set's."""
    are_no_classes = are_not_classes(names)
    if len(names) > 1 and not are_no_classes:
        return
    tables = [
        files.join(place, entry.name)
        for place in dict.fromkeys((folder, root))
        for entry in lister.entries(place)
        if entry.is_file and extension(entry.name) in _TABLES
    ]
    with_images = [path for name in names if lister.images(path := files.join(folder, name), "")]
    if not with_images:
        return
    if tables:
        cure = f'If {tables[0]} says them: input.source="image_table" with it as input.data_dir.'
        raise _no_classes(with_images[0], cure)
    if are_no_classes:
        raise _no_classes(with_images[0])


def are_not_classes(names: Iterable[str]) -> bool:
    """Tells whether all names are of words for splits and images, such as train_images."""
    words = [re.findall(r"[a-z]+", name.lower()) for name in names]
    return all(each and _NON_CLASS_WORDS.issuperset(each) for each in words)


def _no_classes(folder: str, cure: str = "") -> NoClassFolders:
    cure = cure or "Where no class is read, as by method.kind=mae, one folder for all will do."
    return NoClassFolders(
        f"has all images directly in it, not in {folder}/<class>/image.jpg.",
        field=folder,
        cure=cure,
    )


def _check_names(root: str, names: Collection[str]) -> None:
    """UserError for a folder that no list of classes can name, and for two that have one name."""
    normal_names(names, root)
    for name in names:
        with reading(repr(files.join(root, name)), cure="It names a class or a split: rename it."):
            name.encode()


def _is_image(name: str) -> bool:
    return extension(name) in READ.union(UNKNOWN_EXTENSIONS) and not name.startswith(PREFIX)
