"""The user's own images: `<class>/*`, or `<split>/<class>/*`."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from vit_jax.core.class_names import normal, normal_names
from vit_jax.core.errors import UserError, explain_unreadable
from vit_jax.core.image_files import is_hidden, is_image_name
from vit_jax.tools.prepare.collection import (
    IMAGES_PER_PART,
    Collection,
    CollectionRequest,
    ImageRow,
    Labels,
    Part,
    RowAndBytes,
    is_line,
)
from vit_jax.tools.prepare.faults import TURNED
from vit_jax.tools.prepare.tars import MAX_MEMBER_BYTES


def images(part: Part) -> Iterator[RowAndBytes]:
    """The part's files below its folder."""
    for name in part.files:
        path = Path(part.path, name)
        with explain_unreadable(path):
            row = ImageRow(name, str(path), 0, path.stat().st_size)
            if row.nbytes > MAX_MEMBER_BYTES:
                yield row._replace(faults=("too_large",)), None
            else:
                yield row, path.read_bytes()


def not_read(part: Part) -> Iterator[RowAndBytes]:
    """Rows of files that are not read; the part's reader is their fault."""
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
    """UserError if the folders do not have this form."""
    root = Path(request.source)
    if not root.is_dir():
        raise UserError(f"--source={root} is not a folder.")
    folders = _folders(root)
    by_split = {name: _folders(root / name) for name in folders}
    has_splits = _are_splits(root, by_split)
    if odd := [name for name in folders if has_splits and not re.fullmatch(r"[\w-]+", name)]:
        raise UserError(
            f"{root} has the folder {odd[0]!r} in the place of a split, whose name may have only "
            "letters, digits, _ and -: rename it."
        )
    # Images that would be passed over, since other folders contain folders.
    for name in by_split if has_splits else ():
        for file in _names(root / name):
            if is_image_name(file) and os.path.isfile(root / name / file):
                within = next(split for split, names in by_split.items() if names)
                other = "" if within == name else f"{root / within} "
                raise UserError(
                    f"{root / name} holds images ({file!r}), as a class does, and {other}folders "
                    f"({by_split[within][0]!r}), as a split does. All must be <class>/*, or all "
                    "<split>/<class>/*."
                )
    of_classes = by_split if has_splits else {"": folders}
    for where, names in of_classes.items():
        normal_names(names, str(root / where))  # no two of them are one name
    classes = sorted({normal(name) for names in of_classes.values() for name in names})
    labels = {name: label for label, name in enumerate(classes)}
    passed_over = PassedOver(root)
    if has_splits:
        passed_over.pass_over(name for name in _entries(root) if name not in folders)
    for where, names in of_classes.items():
        others = [name for name in _entries(root / where) if name not in names]
        passed_over.pass_over(str(Path(where, name)) for name in others)
    parts = []
    for where, names in of_classes.items():
        for name in names:
            folder = str(Path(where, name))
            files, label = passed_over.files_of_class(folder), labels[normal(name)]
            parts += parts_of_folder(folder, root, files, where or None, (label,))
    if not parts:
        raise UserError(f"--source={root} holds no files as <class>/* or <split>/<class>/*.")
    return Collection(
        name="image_folder",
        description=f"Images of {root.name}.",
        class_names=classes,
        parts=[*parts, *passed_over.parts()],
        policy=TURNED,
    )


def _are_splits(root: Path, folders: Mapping[str, Sequence[str]]) -> bool:
    """Whether these folders, with the folders in each, are splits and not classes.

    Folders inside classes are passed over where it is plain that these are classes: some hold
    images alone, and none holds folders alone.
    """
    if not any(folders.values()):
        return False
    holding = {
        (bool(inside), any(is_image_name(name) for name in _names(root / folder)))
        for folder, inside in folders.items()
    }
    return (False, True) not in holding or (True, False) in holding


class PassedOver:
    """What is below a folder and not an image of a class, by the fault that says why."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._names: dict[str, list[str]] = {}

    def add(self, fault: str, name: str) -> None:
        """Notes a file, or what else has a name."""
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
        """Parts of rows without images, whose reader is the fault."""
        return [
            part
            for fault, names in sorted(self._names.items())
            for part in parts_of_folder(fault, self._root, names, reader=fault)
        ]


def _folders(folder: Path) -> list[str]:
    names = [name for name in _names(folder) if _is_folder(folder / name)]
    for name in names:
        if not is_line(name):
            raise UserError(
                f"{folder} has a folder whose name is not UTF-8, has several lines, or has spaces "
                f"at its ends, {name!r}: rename it. It would be a class."
            )
    return names


def _is_folder(path: Path) -> bool:
    """Whether it is a folder, and not a link to one that it is in itself."""
    above = os.path.realpath(path.parent)
    return os.path.isdir(path) and not (
        os.path.islink(path) and Path(above).is_relative_to(os.path.realpath(path))
    )


def _names(folder: Path) -> list[str]:
    return [name for name in _entries(folder) if not is_hidden(name)]


def _entries(folder: Path) -> list[str]:
    with explain_unreadable(folder):
        return sorted(os.listdir(folder))
