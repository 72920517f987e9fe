"""The user's own images: `<class>/*`, or `<split>/<class>/*`."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from vit_jax.core.class_names import normal, normal_names
from vit_jax.core.errors import reading
from vit_jax.core.image_files import is_hidden, is_image_name
from vit_jax.data.sources.image_folder import are_not_classes
from vit_jax.data.sources.splits import ALL
from vit_jax.tools.prepare.collection import (
    IMAGES_PER_PART,
    Collection,
    CollectionRequest,
    ImageRow,
    Labels,
    Part,
    RowAndBytes,
    refuse_source,
)
from vit_jax.tools.prepare.faults import TURNED
from vit_jax.tools.prepare.tars import MAX_MEMBER_BYTES


def images(part: Part) -> Iterator[RowAndBytes]:
    for name in part.files:
        path = Path(part.path, name)
        with reading(path):
            row = ImageRow(name, str(path), 0, path.stat().st_size)
            if row.nbytes > MAX_MEMBER_BYTES:
                yield row._replace(faults=("too_large",)), None
            else:
                yield row, path.read_bytes()


def not_read(part: Part) -> Iterator[RowAndBytes]:
    for name in part.files:
        yield ImageRow(name, faults=(part.reader,)), None


def parts_of_folder(
    name: str,
    path: Path,
    files: Sequence[str],
    split: str | None = None,
    labels: Labels | Mapping[str, Labels] = (),
    reader: str = "files",
) -> list[Part]:
    """Parts of IMAGES_PER_PART files below `path`, with the labels of the part or of each file."""
    parts = []
    for start in range(0, len(files), IMAGES_PER_PART):
        some = tuple(files[start : start + IMAGES_PER_PART])
        own = {file: labels[file] for file in some} if isinstance(labels, Mapping) else labels
        part_name = f"{name}, {start + 1:,} ..."
        parts.append(Part(part_name, reader, str(path), files=some, split=split, labels=own))
    return parts


def collection(request: CollectionRequest) -> Collection:
    root = Path(request.source)
    with reading("--source", root):
        os.listdir(root)
    folders = _folders(root)
    by_split = {name: _folders(root / name) for name in folders}
    has_splits = _are_splits(root, by_split)
    # Images beside the classes of a split would be passed over.
    odd = [
        str(Path(name, file))
        for name in (by_split if has_splits else ())
        for file in ("", *_names(root / name))
        if (not re.fullmatch(rf"(?!{ALL}$)[\w-]+", name) if not file else is_image_name(file))
        and os.path.exists(root / name / file)
    ]
    if odd:
        rule = f"has {odd[0]!r} beside folders of splits: all must be <split>/<class>/*."
        refuse_source(root, rule)
    of_classes = by_split if has_splits else {"": folders}
    for where, names in of_classes.items():
        normal_names(names, str(root / where))  # no two of them are one name
    classes = sorted({normal(name) for names in of_classes.values() for name in names})
    if classes and are_not_classes(classes):
        rule = f"has images in {', '.join(classes)}, whose names say splits, not classes."
        refuse_source(root, rule)
    labels = {name: label for label, name in enumerate(classes)}
    passed_over, parts = PassedOver(root), list[Part]()
    if has_splits:
        passed_over.pass_over(name for name in _entries(root) if name not in folders)
    for where, names in of_classes.items():
        others = [name for name in _entries(root / where) if name not in names]
        passed_over.pass_over(str(Path(where, name)) for name in others)
        for name in names:
            folder = str(Path(where, name))
            files, label = passed_over.files_of_class(folder), labels[normal(name)]
            parts += parts_of_folder(folder, root, files, where or None, (label,))
    return Collection(
        name="image_folder",
        description=f"Images of {root.name}.",
        class_names=classes,
        parts=[*parts, *passed_over.parts()] if parts else [],
        policy=TURNED,
    )


def _are_splits(root: Path, folders: Mapping[str, Sequence[str]]) -> bool:
    """Returns whether these folders, with the folders in each, are splits and not classes."""
    if not any(folders.values()):
        return False
    # Classes, plainly, are where some hold images alone, and none holds folders alone.
    holding = {
        (bool(inside), any(is_image_name(name) for name in _names(root / folder)))
        for folder, inside in folders.items()
    }
    return (False, True) not in holding or (True, False) in holding


class PassedOver:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._names: dict[str, list[str]] = {}

    def add(self, fault: str, name: str) -> None:
        self._names.setdefault(fault, []).append(name)

    def pass_over(self, names: Iterable[str], fault: str = "beside_classes") -> None:
        """Notes what is called so below the root, of a folder all that is in it."""
        for name in names:
            path = self._root / name
            why = "hidden" if any(map(is_hidden, Path(name).parts)) else fault
            if os.path.isdir(path) and not os.path.islink(path):
                self.pass_over((str(Path(name, entry)) for entry in _entries(path)), why)
            else:
                known = os.path.isfile(path) or os.path.isdir(path)
                self.add(why if known else "no_file", name)

    def files_of_class(self, folder: str) -> list[str]:
        """The files in a folder below the root; notes what else is in it."""
        files = []
        for name in _entries(self._root / folder):
            file = str(Path(folder, name))
            # os.path.isfile, since DirEntry.is_file raises where links lead in a circle.
            if os.path.isfile(self._root / file) and not is_hidden(name):
                files.append(file)
            else:
                self.pass_over([file], "nested")
        return files

    def parts(self) -> list[Part]:
        return [
            part
            for fault, names in sorted(self._names.items())
            for part in parts_of_folder(fault, self._root, names, reader=fault)
        ]


def _folders(folder: Path) -> list[str]:
    return [name for name in _names(folder) if _is_folder(folder / name)]


def _is_folder(path: Path) -> bool:
    """Returns whether it is a folder, and not a link to one that it is in."""
    above = os.path.realpath(path.parent)
    return os.path.isdir(path) and not (
        os.path.islink(path) and Path(above).is_relative_to(os.path.realpath(path))
    )


def _names(folder: Path) -> list[str]:
    return [name for name in _entries(folder) if not is_hidden(name)]


def _entries(folder: Path) -> list[str]:
    with reading(folder):
        return sorted(os.listdir(folder))
