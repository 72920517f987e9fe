"""WebDataset: tars in which files with the same name but for the extension make a sample.

https://github.com/webdataset/webdataset: `0017.jpg` and `0017.cls`, a number or a name as text; or
`0017.json` with a field for the class or classes.
"""

import json
from collections.abc import Iterator
from pathlib import PurePosixPath

from vit_jax.core.errors import UserError
from vit_jax.prepare.catalogue import ImageRow, Labels, RowAndBytes
from vit_jax.prepare.collection import Collection, CollectionRequest, Part
from vit_jax.prepare.readers.labels import BadLabelError, Reading, classes
from vit_jax.prepare.readers.source_files import source_files
from vit_jax.prepare.readers.tars import Archive

SUFFIXES = (".tar", ".tar.gz", ".tgz")
IMAGES = frozenset({"jpg", "jpeg", "jpe", "png", "webp", "gif", "bmp"})
CLASS = "cls"
MAX_LABEL_BYTES = 2**20


def collection(request: CollectionRequest) -> Collection:
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


def images(part: Part) -> Iterator[RowAndBytes]:
    """The samples of a tar, and its members that are not samples."""
    assert part.reading is not None
    label_extension = "json" if part.reading.label_field else CLASS
    with Archive(part, decompress=True) as archive:
        key = ""
        image: RowAndBytes | None = None
        text: bytes | None = None
        for info, fault in archive.files():
            path = PurePosixPath(info.name)
            if fault:
                yield archive.refused(info, fault, prefix=f"{part.name}/"), None
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
                row = ImageRow(f"{part.name}/{info.name}", *archive.location(info))
                image = row, archive.read(info)
            elif extension == label_extension:
                text = archive.read(info) if info.size <= MAX_LABEL_BYTES else b"\0"
        if key:
            yield _sample(part, key, image, text)


def _sample(part: Part, key: str, image: RowAndBytes | None, text: bytes | None) -> RowAndBytes:
    if image is None:
        return ImageRow(f"{part.name}/{key}", faults=("no_image",)), None
    row, data = image
    try:
        labels = _labels(text, part.reading) if text is not None and part.reading else ()
    except UserError:  # about the list of classes
        raise
    except (ValueError, RecursionError):  # from JSON or UTF-8; BadLabelError
        return row._replace(faults=("bad_label",)), None
    return row._replace(labels=labels), data


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
