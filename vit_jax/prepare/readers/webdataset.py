"""WebDataset: tars in which files of one name but for their extensions make a sample.

https://github.com/webdataset/webdataset: `0017.jpg` and `0017.cls`, a number or a name as text; or
`0017.json` with a field that says the class or classes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import NamedTuple

from vit_jax.core.errors import UserError
from vit_jax.prepare.collection import Collection, Request
from vit_jax.prepare.entry import Labels, Member, Part, Place
from vit_jax.prepare.readers.labels import BadLabelError, Reading, classes
from vit_jax.prepare.readers.source_files import source_files
from vit_jax.prepare.readers.tars import Archive

SUFFIXES = (".tar", ".tar.gz", ".tgz")
IMAGES = frozenset({"jpg", "jpeg", "jpe", "png", "webp", "gif", "bmp"})
CLASS = "cls"
MAX_LABEL_BYTES = 2**20


def collection(request: Request) -> Collection:
    """UserError if there are no tars, or the classes are not given."""
    reading = Reading(classes(request), request.label_field or "", bool(request.multi_label))
    return Collection(
        name="webdataset",
        description="Images of WebDataset tars.",
        class_names=reading.classes.names,
        parts=[
            Part(file.name, "webdataset", str(file.path), split=file.split, reading=reading)
            for file in source_files(request.source, SUFFIXES)
        ],
        multi_label=reading.several,
    )


class _Image(NamedTuple):
    name: str
    data: bytes
    place: Place | None


def members(part: Part) -> Iterator[Member]:
    """The samples of a tar, and what in it is none."""
    assert part.reading is not None
    label_extension = "json" if part.reading.label_field else CLASS
    with Archive(part, decompress=True) as archive:
        key, image, text = "", None, None
        for info, fault in archive.files():
            path = PurePosixPath(info.name)
            if fault:
                yield Member(f"{part.name}/{info.name}", None, archive.place(info), fault=fault)
                continue
            stem, _, extension = path.name.partition(".")
            extension = extension.lower()
            if not stem:  # ".DS_Store", "._0017.jpg"
                continue
            if str(path.with_name(stem)) != key:
                if key:
                    yield _sample(part, key, image, text)
                key, image, text = str(path.with_name(stem)), None, None
            if extension in IMAGES and image is None:
                name = f"{part.name}/{info.name}"
                image = _Image(name, archive.read(info), archive.place(info))
            elif extension == label_extension:
                text = archive.read(info) if info.size <= MAX_LABEL_BYTES else b"\0"
        if key:
            yield _sample(part, key, image, text)


def _sample(part: Part, key: str, image: _Image | None, text: bytes | None) -> Member:
    if image is None:
        return Member(f"{part.name}/{key}", None, None, fault="no_image")
    try:
        labels = _labels(text, part.reading) if text is not None and part.reading else ()
    except UserError:  # of the list of classes
        raise
    except (ValueError, RecursionError):  # of JSON, of UTF-8, BadLabelError
        return Member(image.name, None, image.place, fault="bad_label")
    return Member(image.name, image.data, image.place, labels)


def _labels(text: bytes, reading: Reading) -> Labels:
    if reading.label_field:
        entry = json.loads(text)
        if not isinstance(entry, dict):
            raise BadLabelError(entry)
        return reading.classes.labels(entry.get(reading.label_field), several=reading.several)
    word = text.decode().strip()
    try:
        return (reading.classes.label(word),)
    except BadLabelError:
        if not word.isascii() or not word.isdigit():
            raise
        return (reading.classes.label(int(word)),)
