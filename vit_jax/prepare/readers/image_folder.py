"""The user's own images: `<class>/*`, or `<split>/<class>/*`."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from vit_jax.core.errors import UserError
from vit_jax.core.image_files import is_image_name
from vit_jax.prepare.catalogue import ImageRow, Labels, RowAndBytes
from vit_jax.prepare.collection import IMAGES_PER_PART, Collection, CollectionRequest, Part, is_line
from vit_jax.prepare.faults import CONVERT
from vit_jax.prepare.readers.tars import MAX_MEMBER_BYTES


def images(part: Part) -> Iterator[RowAndBytes]:
    """The part's files below its folder."""
    for name in part.files:
        path = Path(part.path, name)
        try:
            row = ImageRow(name, str(path), 0, path.stat().st_size)
            if row.nbytes > MAX_MEMBER_BYTES:
                yield row._replace(faults=("too_large",)), None
            else:
                yield row, path.read_bytes()
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}.") from error


def parts_of_folder(
    name: str,
    path: Path,
    files: Sequence[str],
    split: str | None,
    labels: Labels | Mapping[str, Labels],
) -> list[Part]:
    """Parts of IMAGES_PER_PART files below `path`, with the labels of the part or of each file."""
    parts = []
    for start in range(0, len(files), IMAGES_PER_PART):
        some = tuple(files[start : start + IMAGES_PER_PART])
        own = {file: labels[file] for file in some} if isinstance(labels, Mapping) else labels
        part_name = f"{name}, {start + 1:,} ..."
        parts.append(Part(part_name, "files", str(path), files=some, split=split, labels=own))
    return parts


def collection(request: CollectionRequest) -> Collection:
    """UserError if the folders do not have this form."""
    root = Path(request.source)
    if not root.is_dir():
        raise UserError(f"--source={root} is not a folder.")
    folders = _folders(root)
    by_split = {name: _folders(root / name) for name in folders}
    has_splits = any(by_split.values())
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
                raise UserError(
                    f"{root / name} holds images ({file!r}), as a class does, and {root / within} "
                    f"folders ({by_split[within][0]!r}), as a split does. All must be <class>/*, "
                    "or all <split>/<class>/*."
                )
    classes = sorted({c for names in by_split.values() for c in names} if has_splits else folders)
    labels = {name: label for label, name in enumerate(classes)}
    parts = [
        part
        for split in (folders if has_splits else [None])
        for name in (by_split[split] if split else classes)
        for part in _parts(root, split, name, labels[name])
    ]
    if not parts:
        raise UserError(f"--source={root} holds no files as <class>/* or <split>/<class>/*.")
    return Collection(
        name="image_folder",
        description=f"Images of {root.name}.",
        class_names=classes,
        parts=parts,
        # Training ignores the orientation in data sets, but honours it in folders.
        policy={"rotated": CONVERT},
    )


def _parts(root: Path, split: str | None, class_name: str, label: int) -> list[Part]:
    folder = root / (split or "") / class_name
    # os.path.isfile, since DirEntry.is_file raises where links lead in a circle.
    names = [name for name in _names(folder) if os.path.isfile(folder / name)]
    files = [str(Path(split or "", class_name, name)) for name in names]
    name = str(Path(split or "", class_name))
    return parts_of_folder(name, root, files, split, (label,))


def _folders(folder: Path) -> list[str]:
    names = [name for name in _names(folder) if os.path.isdir(folder / name)]
    for name in names:
        if not is_line(name):
            raise UserError(
                f"{folder} has a folder whose name is not UTF-8, has several lines, or has spaces "
                f"at its ends, {name!r}: rename it. It would be a class."
            )
    return names


def _names(folder: Path) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except OSError as error:
        raise UserError(f"{folder} cannot be read: {error.strerror}.") from error
