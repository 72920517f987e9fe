"""One's own images: `<class>/*`, or `<split>/<class>/*`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from vit_jax.core.errors import UserError
from vit_jax.prepare.checking import KNOWN_EXTENSIONS
from vit_jax.prepare.collection import Collection, Request
from vit_jax.prepare.entry import Part, is_text
from vit_jax.prepare.faults import CONVERT

FILES_A_PART = 1000


def collection(request: Request) -> Collection:
    """UserError if the folders do not have this form."""
    root = Path(request.source)
    if not root.is_dir():
        raise UserError(f"--source={root} is not a folder.")
    folders = _folders(root)
    by_split = {name: _folders(root / name) for name in folders}
    has_splits = any(by_split.values())
    if odd := [name for name in folders if has_splits and not re.fullmatch(r"[\w-]+", name)]:
        raise UserError(
            f"{root} has the folder {odd[0]!r} in the place of a split, whose name has letters, "
            "digits, _ and - alone: rename it."
        )
    _refuse_both(root, by_split)
    classes = sorted({c for found in by_split.values() for c in found} if has_splits else folders)
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
        # Training ignores the orientation in data sets, where it honours it in folders.
        policy={"rotated": CONVERT},
    )


def _refuse_both(root: Path, by_split: Mapping[str, Sequence[str]]) -> None:
    """UserError if images would be passed over because other folders have folders in them."""
    for name in by_split if any(by_split.values()) else ():
        for file in _names(root / name):
            if Path(file).suffix.lower() in KNOWN_EXTENSIONS and os.path.isfile(root / name / file):
                within = next(split for split, found in by_split.items() if found)
                raise UserError(
                    f"{root / name} holds images ({file!r}), as a class does, and {root / within} "
                    f"folders ({by_split[within][0]!r}), as a split does. All must be <class>/*, "
                    "or all <split>/<class>/*."
                )


def _parts(root: Path, split: str | None, class_name: str, label: int) -> list[Part]:
    folder = root / (split or "") / class_name
    # os.path.isfile, since DirEntry.is_file raises where links lead in a circle.
    names = [name for name in _names(folder) if os.path.isfile(folder / name)]
    files = [str(Path(split or "", class_name, name)) for name in names]
    return [
        Part(
            name=f"{Path(split or '', class_name)}, {start + 1:,} ...",
            reader="files",
            path=str(root),
            files=tuple(files[start : start + FILES_A_PART]),
            split=split,
            labels=(label,),
        )
        for start in range(0, len(files), FILES_A_PART)
    ]


def _folders(folder: Path) -> list[str]:
    names = [name for name in _names(folder) if os.path.isdir(folder / name)]
    for name in names:
        if not is_text(name) or name.splitlines() != [name] or name.strip() != name:
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
