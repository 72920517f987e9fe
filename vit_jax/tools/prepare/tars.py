"""Tar archives, also inside others, read in place, and the samples of WebDataset's tars.

WebDataset (https://github.com/webdataset/webdataset): files with the same name but for the
extension make a sample: `0017.jpg` and `0017.cls`, a number or a name as text; or `0017.json` with
a field for the class or classes. A name ends at its first dot: `clip.01.jpg` and `clip.02.jpg` are
two fields of the sample `clip`, and neither is its image.
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath, PureWindowsPath
from typing import NamedTuple, cast

from vit_jax.core.errors import UserError, reading
from vit_jax.core.image_files import is_hidden, is_image_name
from vit_jax.tools.prepare.collection import (
    Collection,
    CollectionRequest,
    ImageRow,
    Labels,
    Part,
    RowAndBytes,
)
from vit_jax.tools.prepare.entries import (
    BadLabelError,
    Reading,
    classes,
    source_files,
    split_by_names,
)
from vit_jax.tools.prepare.faults import TURNED

MAX_MEMBER_BYTES = 256 * 2**20  # no image is larger, and all of it is read at once
MAX_HEADER_BYTES, MAX_LABEL_BYTES = 2**20, 2**20
SUFFIXES = (".tar", ".tar.gz", ".tgz")
CLASS = "cls"  # extension of a sample's label
_COMPRESSED = {b"\x1f\x8b": "gzip -d", b"BZh": "bzip2 -d", b"\xfd7z": "xz -d", b"(\xb5/": "zstd -d"}
_LONG_HEADERS = (
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
)


def images(
    part: Part, *, named: Callable[[str], str] = lambda path: PurePosixPath(path).name
) -> Iterator[RowAndBytes]:
    """The members of a tar in their order, each an image; nowhere if it is compressed."""
    with Archive(part, decompress=True) as archive:
        for info, fault in archive.files():
            if fault:
                yield archive.row(info, info.name, fault), None
            else:
                yield archive.row(info, named(info.name)), archive.read(info)


class Archive:
    """A tar, gzipped where `decompress` allows it, that is read from its beginning to its end."""

    def __init__(self, part: Part, *, decompress: bool = False) -> None:
        self._part = part
        self._title = f"{part.path}, {part.name} in it" if part.offset else part.path
        with reading(self._title):
            self._opened = file = open(part.path, "rb")  # noqa: SIM115, closed by __exit__
            if part.nbytes is not None:  # inside another tar
                inner = tarfile.TarInfo(part.name)
                inner.offset_data, inner.size = part.offset, part.nbytes
                outer = tarfile.open(fileobj=file, mode="r:", tarinfo=_Header)  # noqa: SIM115
                file = cast("io.BufferedReader", outer.extractfile(inner))
            start = file.read(4)
            file.seek(0)
        self._file = file
        self._is_gzip = decompress and start.startswith(b"\x1f\x8b")
        if self._is_gzip:
            # Buffered, since seeking back would decompress everything from the beginning.
            self._file = io.BufferedReader(gzip.GzipFile(fileobj=file), 1 << 20)  # type: ignore
        for magic, program in () if self._is_gzip else _COMPRESSED.items():
            with reading(self._title, cure=f"{program} {part.path}"):
                if start.startswith(magic):
                    raise tarfile.ReadError("it is compressed: no random access")

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._opened.close()

    def infos(self) -> Iterator[tarfile.TarInfo]:
        """All members; then checks the end mark, and that nothing is behind it."""
        with reading(self._title):
            with tarfile.open(fileobj=self._file, mode="r:", tarinfo=_Header) as tar:
                before = -1
                while (info := tar.next()) is not None:
                    if info.size < 0 or tar.offset <= before:
                        raise tarfile.ReadError("a negative size")
                    before = tar.offset
                    yield info
                    tar.members.clear()  # type: ignore[attr-defined]  # would keep all
                end = tar.offset
            self._file.seek(end)
            if self._file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                raise tarfile.ReadError("its end is missing")
            if any(block.strip(b"\0") for block in iter(lambda: self._file.read(2**20), b"")):
                raise tarfile.ReadError("data behind its end mark: give each of several tars alone")

    def files(self) -> Iterator[tuple[tarfile.TarInfo, str]]:
        return ((info, fault(info)) for info in self.infos() if not info.isdir())

    def row(self, info: tarfile.TarInfo, name: str, *faults: str) -> ImageRow:
        row = ImageRow(name, faults=faults)
        if self._is_gzip:
            return row
        return row.located(self._part.path, self._part.offset + info.offset_data, info.size)

    def read(self, info: tarfile.TarInfo) -> bytes:
        with reading(self._title):
            self._file.seek(info.offset_data)
            data = self._file.read(info.size)
            if len(data) != info.size:
                raise EOFError(f"it ends inside {info.name}")
        return data


class _Header(tarfile.TarInfo):
    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        most = MAX_HEADER_BYTES if self.type in _LONG_HEADERS else 2**62  # as an offset can be
        if not 0 <= self.size <= most:
            raise tarfile.ReadError(f"a header of {self.size:,} bytes")
        return super()._proc_member(archive)  # type: ignore[misc]

    def _proc_gnusparse_10(self, member: tarfile.TarInfo, *_: object) -> None:
        """Skips the list of a sparse file's holes, which may be as long as the archive."""
        member.sparse = []  # type: ignore[assignment]


def fault(info: tarfile.TarInfo) -> str:
    """The reason why a member must not be read, in faults.FAULTS; "" if it may."""
    if not info.isreg() or info.issparse():
        return "no_file"
    if "\0" in info.name:
        return "unsafe_name"
    path, windows = PurePosixPath(info.name), PureWindowsPath(info.name)
    if path.is_absolute() or windows.drive or windows.root or ".." in path.parts + windows.parts:
        return "outside"  # unpacked, it could be outside the folder
    return "too_large" if info.size > MAX_MEMBER_BYTES else ""


def webdataset(request: CollectionRequest) -> Collection:
    reading = Reading(classes(request), request.label_field or "", bool(request.multi_label))
    files, notes = split_by_names(source_files(request.source, SUFFIXES), request.source)
    return Collection(
        name="webdataset",
        description="Images of WebDataset tars.",
        class_names=reading.classes.names,
        parts=[
            Part(file.name, "webdataset", str(file.path), split=file.split, reading=reading)
            for file in files
        ],
        multi_label=reading.several,
        notes=notes,
        policy=TURNED,
    )


class _Sample(NamedTuple):
    """The members of a sample that are read; others, such as captions, are no images."""

    key: str  # the path up to the first dot of the name
    images: dict[str, RowAndBytes]  # by extension, all behind the first dot; in their order
    twice: list[ImageRow]  # images with the name of another one
    labels: list[bytes]  # the text with its label or labels; b"\0" for two texts


def samples(part: Part) -> Iterator[RowAndBytes]:
    assert part.reading is not None
    label_extension = "json" if part.reading.label_field else CLASS
    with Archive(part, decompress=True) as archive:
        sample = _Sample("", {}, [], [])
        for info, refused in archive.files():
            path = PurePosixPath(info.name)
            fault = refused or ("hidden" if any(map(is_hidden, path.parts)) else "")
            if fault:
                yield archive.row(info, f"{part.name}/{info.name}", fault), None
                continue
            row = archive.row(info, f"{part.name}/{info.name}")
            stem, _, last = path.name.partition(".")
            key, last = str(path.with_name(stem)), last.lower()
            if key != sample.key:
                yield from _rows(part, sample)
                sample = _Sample(key, {}, [], [])
            if is_image_name(path.name):
                if last in sample.images:
                    sample.twice.append(row._replace(faults=("same_member",)))
                else:
                    sample.images[last] = row, archive.read(info)
            elif last == label_extension:
                text = archive.read(info) if info.size <= MAX_LABEL_BYTES else b"\0"
                sample.labels[:] = [text if sample.labels in ([], [text]) else b"\0"]
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
            labels = _labels(sample.labels[0], part.reading) if sample.labels else ()
        except UserError:  # about the list of classes
            raise
        except (ValueError, RecursionError):  # from JSON or UTF-8; BadLabelError
            yield row._replace(faults=("bad_label",)), None
        else:
            yield row._replace(labels=labels), data
    yield from ((row, None) for row in sample.twice)


def _labels(text: bytes, reading: Reading | None) -> Labels:
    assert reading is not None
    if not reading.label_field:
        return (reading.classes.label_in_text(text.decode().strip()),)
    entry = json.loads(text)
    if not isinstance(entry, dict):
        raise BadLabelError(entry)
    return reading.classes.labels(entry.get(reading.label_field), several=reading.several)
