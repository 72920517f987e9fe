"""WebDataset: tars in which files with the same name but for the extension make a sample.

https://github.com/webdataset/webdataset: `0017.jpg` and `0017.cls`, a number or a name as text; or
`0017.json` with a field for the class or classes. A name ends at its first dot: `clip.01.jpg` and
`clip.02.jpg` are two fields of the sample `clip`, and neither is its image.
"""

import json
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import NamedTuple

from vit_jax.core.errors import UserError
from vit_jax.core.image_files import is_hidden, is_image_name
from vit_jax.tools.prepare.catalogue import ImageRow, Labels, RowAndBytes
from vit_jax.tools.prepare.collection import Collection, CollectionRequest, Part
from vit_jax.tools.prepare.readers.labels import BadLabelError, Reading, classes
from vit_jax.tools.prepare.readers.source_files import source_files
from vit_jax.tools.prepare.readers.tars import Archive

SUFFIXES = (".tar", ".tar.gz", ".tgz")
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


class _Sample(NamedTuple):
    """The members of a sample that are read; others, such as captions, are no images."""

    key: str  # the path up to the first dot of the name
    images: dict[str, RowAndBytes]  # by extension, all behind the first dot; in their order
    twice: list[ImageRow]  # images with the name of another one
    texts: dict[str, bytes]  # labels, by extension


def images(part: Part) -> Iterator[RowAndBytes]:
    """The samples of a tar, and its members that are not samples.

    Each member that is an image has a row: that of its sample, or one that is left out.
    """
    assert part.reading is not None
    label_extension = "json" if part.reading.label_field else CLASS
    with Archive(part, decompress=True) as archive:
        sample = _Sample("", {}, [], {})
        for info, fault in archive.files():
            path = PurePosixPath(info.name)
            row = ImageRow(f"{part.name}/{info.name}", *archive.location(info))
            if fault:
                yield archive.refused(info, fault, prefix=f"{part.name}/"), None
                continue
            if any(map(is_hidden, path.parts)):
                yield row._replace(faults=("hidden",)), None
                continue
            stem, _, last = path.name.partition(".")
            key, last = str(path.with_name(stem)), last.lower()
            if key != sample.key:
                yield from _rows(part, sample)
                sample = _Sample(key, {}, [], {})
            if is_image_name(path.name):
                if last in sample.images:
                    sample.twice.append(row._replace(faults=("same_member",)))
                    continue
                sample.images[last] = row, archive.read(info)
            elif last == label_extension:
                text = archive.read(info) if info.size <= MAX_LABEL_BYTES else b"\0"
                if sample.texts.setdefault(last, text) != text:
                    sample.texts[last] = b"\0"  # two labels: none
        yield from _rows(part, sample)


def _rows(part: Part, sample: _Sample) -> Iterator[RowAndBytes]:
    """The image of a sample, and its others, which are left out."""
    if not sample.key:  # before the first one
        return
    whole = next((name for name in sample.images if "." not in name), None)
    if not sample.images:
        yield ImageRow(f"{part.name}/{sample.key}", faults=("no_image",)), None
    for name, (row, data) in sample.images.items():
        if name != whole:
            yield row._replace(faults=("dotted_name" if whole is None else "other_image",)), None
            continue
        try:
            text = next(iter(sample.texts.values()), None)
            labels = _labels(text, part.reading) if text is not None and part.reading else ()
        except UserError:  # about the list of classes
            raise
        except (ValueError, RecursionError):  # from JSON or UTF-8; BadLabelError
            yield row._replace(faults=("bad_label",)), None
        else:
            yield row._replace(labels=labels), data
    yield from ((row, None) for row in sample.twice)


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
