"""Images with maps, such as masks and depths: in folders side by side, or by a table of files.

    images/a.jpg  masks/a.png            one in ten is `val`, as in image_folder.py
    images/train/a.jpg  masks/train/a.png, or train/images/a.jpg  train/masks/a.png
    pairs.csv                            columns image, mask or depth or both, and perhaps split

A mask holds a class for each pixel, a depth a measure that is 0 where there is none. Files of one
image have one name but for the extension. Names of classes are the lines of `classes.txt` beside.
"""

import csv
import os.path
from collections.abc import Mapping
from pathlib import PurePath
from typing import NamedTuple

import numpy as np

from vit_jax.core.class_names import normal
from vit_jax.core.errors import UserError, reading
from vit_jax.core.image_files import extension, is_hidden
from vit_jax.core.waiting import waiting_for
from vit_jax.data import files
from vit_jax.data.maps import EXTENSIONS, VOID
from vit_jax.data.source import DEPTH, MASK, Example, MapKind, Request, digest
from vit_jax.data.sources.image_folder import READ, ImageFiles, form_of
from vit_jax.data.sources.split_names import HELD_OUT, with_val
from vit_jax.data.sources.splits import ALL, base_name, resolve

IMAGE = "image"
# What a folder holds -> its names, in lower case.
FOLDERS = {
    IMAGE: ("images", "image", "imgs", "img", "jpegimages", "leftimg8bit", "photos"),
    MASK: ("masks", "mask", "annotations", "labels", "segmentationclass", "gtfine", "gt"),
    DEPTH: ("depths", "depth"),
}
_READ = {IMAGE: READ, MASK: EXTENSIONS, DEPTH: EXTENSIONS}
_LAYOUT = "images/a.jpg and masks/a.png, or a table with the columns image and mask"
_CLASSES = "classes.txt"


class _File(NamedTuple):
    path: str
    size_bytes: int | None


_Examples = dict[str, dict[str, _File]]  # files of an image by what they hold, by its name


class MaskFolder(ImageFiles):
    """A split of images with maps. An EXIF orientation is a fault: is it the map's too?"""

    name = "mask_folder"

    def __init__(self, r: Request) -> None:
        self.location = root = find_root(r.data_dir, where=r.where)
        wanted, field = base_name(r.split, where=r.where), f"{r.where}.data_dir"
        is_table = extension(root) == ".csv"
        by_split = _in_table(root) if is_table else _in_folders(root, wanted, field)
        if list(by_split) == [ALL]:
            names = list(by_split[ALL])
            hashes = [digest(normal(name)) for name in names]
            for split, some in with_val(names, hashes, [""] * len(names)).items():
                by_split[split] = {name: by_split[ALL][name] for name in some}
            self.notes = (HELD_OUT,) * (wanted == "train")
        self.part = resolve(r.split, {n: len(each) for n, each in by_split.items()}, where=r.where)
        examples = by_split[wanted]
        kinds = [kind for kind in FOLDERS if any(kind in each for each in examples.values())]
        _check_complete(examples, kinds, root, field)
        order = sorted(examples, key=lambda name: digest(normal(name)))
        self._files = [
            [examples[name][kind] for kind in kinds]
            for name in order[self.part.start : self.part.stop]
        ]
        self.num_examples = len(self._files)
        self.class_names = _class_names(os.path.dirname(root) if is_table else root)
        self.num_classes = len(self.class_names or ()) or r.num_classes or 0
        if MASK in kinds and not self.num_classes:
            rule = f"leaves the classes open: write their names into {_CLASSES}, in {root}."
            raise UserError(rule, field="input.num_classes", value=None)
        void = VOID if r.void is None else r.void
        masks, depths = MapKind(MASK, void, self.num_classes), MapKind(DEPTH)
        self.maps = tuple(masks if kind == MASK else depths for kind in kinds[1:])
        self.num_classes = self.num_classes or 1
        self.pixels = form_of(self.describe(0))
        about = [str(self.maps), *(self.class_names or ())]
        about += [f"{PurePath(f.path).name} {f.size_bytes}" for row in self._files for f in row]
        self.fingerprint = digest("\n".join(about))

    def read(self, indices: np.ndarray) -> list[Example]:
        maps = ([_read(each.path) for each in self._files[index][1:]] for index in indices)
        pairs = zip(super().read(indices), maps, strict=True)
        return [example._replace(maps=tuple(of_image)) for example, of_image in pairs]

    def file(self, index: int) -> tuple[str, tuple[int, ...], int | None]:
        image = self._files[index][0]
        return image.path, (), image.size_bytes

    def stamp(self) -> str:
        return files.stamp([each.path for row in self._files for each in row])


def _read(path: str) -> bytes:
    with reading(path), waiting_for(lambda: path):
        return files.read(path)


def find_root(data_dir: str | None, *, where: str) -> str:
    """The folder or the table. UserError if it is neither."""
    if extension(data_dir or "") == ".csv":
        return files.expanded(data_dir or "")
    return files.existing_folder(data_dir, f"{where}.data_dir", cure=f"It should hold {_LAYOUT}.")


def _kinds(folder: str) -> dict[str, str]:
    known = {word: kind for kind, words in FOLDERS.items() for word in words}
    return {
        known[name.lower()]: files.join(folder, name)
        for name in files.subfolders(folder)
        if name.lower() in known
    }


def _in_folders(root: str, wanted: str, field: str) -> dict[str, _Examples]:
    """The examples of the wanted split, and of others the names; ALL where there are no splits."""
    kinds, splits = _kinds(root), files.subfolders(root)
    if IMAGE in kinds:
        splits = files.subfolders(kinds[IMAGE])
        by_split = {s: {kind: files.join(path, s) for kind, path in kinds.items()} for s in splits}
        by_split = by_split or {ALL: kinds}
    else:
        by_split = {split: _kinds(files.join(root, split)) for split in splits}
        by_split = {split: kinds for split, kinds in by_split.items() if IMAGE in kinds}
    if not any(len(kinds) > 1 for kinds in by_split.values()):
        rule = f"has no masks beside images: it should hold {_LAYOUT}."
        raise UserError(rule, field=field, value=root)
    result: dict[str, _Examples] = {split: {} for split in by_split}
    for split in {wanted, ALL} & set(by_split):
        for kind, folder in by_split[split].items():
            for entry in files.list_folder(folder):
                if entry.is_file and not is_hidden(entry.name):
                    _add(
                        result[split], kind, _File(files.join(folder, entry.name), entry.size_bytes)
                    )
    return result


def _add(examples: _Examples, kind: str, file: _File) -> None:
    if extension(file.path) not in _READ[kind]:
        if kind == IMAGE:
            return
        raise UserError(f"{file.path}: a {kind} is one of {', '.join(_READ[kind])}.")
    name = PurePath(file.path).stem
    of_image = examples.setdefault(normal(name), {})
    if kind in of_image:
        raise UserError(f"{file.path} and {of_image[kind].path} are both {kind}s of one image.")
    of_image[kind] = file


def _in_table(path: str) -> dict[str, _Examples]:
    with reading(path), open(path, newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
        kinds = [kind for kind in FOLDERS if rows and kind in rows[0]]
        if IMAGE not in kinds or len(kinds) < 2:
            raise ValueError("no columns image and mask, or image and depth")
        if "split" in rows[0] and "" in (splits := [row["split"] or "" for row in rows]):
            raise ValueError(f"row {splits.index('') + 1} names no split")
    base = os.path.dirname(path)
    result: dict[str, _Examples] = {}
    for number, row in enumerate(rows):
        paths = {kind: os.path.join(base, row[kind]) for kind in kinds if row[kind]}
        sizes = files.sizes(list(paths.values()))
        if None in sizes:
            raise UserError(f"{path}: {list(paths.values())[sizes.index(None)]} is not there.")
        of_split = result.setdefault(row.get("split", ALL), {})
        of_split[f"{row[IMAGE]} {number}"] = {
            kind: _File(file, size) for (kind, file), size in zip(paths.items(), sizes, strict=True)
        }
    return result


def _check_complete(
    examples: Mapping[str, Mapping[str, _File]], kinds: list[str], root: str, field: str
) -> None:
    for kind in kinds if kinds != [IMAGE] else [MASK]:
        lacking = [each for each in examples.values() if kind not in each]
        if lacking:
            first = next(iter(lacking[0].values())).path
            rule = f"has no {kind} for {first}, one of {len(lacking)} of {len(examples)}."
            raise UserError(rule, field=field, value=root)


def _class_names(folder: str) -> tuple[str, ...] | None:
    path = files.join(folder, _CLASSES)
    if not any(entry.name == _CLASSES for entry in files.list_folder(folder or ".")):
        return None
    with reading(path):
        lines = files.read(path).decode("utf-8-sig").splitlines()
    return tuple(line.strip() for line in lines if line.strip())
