"""Tar archives, also inside others: their members and the locations of these, in place."""

from __future__ import annotations

import errno
import gzip
import io
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath, PureWindowsPath
from typing import IO

from vit_jax.core.errors import UserError
from vit_jax.tools.prepare.catalogue import ImageRow, Location, RowAndBytes
from vit_jax.tools.prepare.collection import Part

MAX_MEMBER_BYTES = 256 * 2**20  # no image is larger, and all of it is read at once
_COMPRESSED = {b"\x1f\x8b": "gzip -d", b"BZh": "bzip2 -d", b"\xfd7z": "xz -d", b"(\xb5/": "zstd -d"}
_DAMAGE = (
    tarfile.TarError,
    EOFError,
    gzip.BadGzipFile,
    zlib.error,
    RecursionError,  # of very many headers for one member
)
MAX_HEADER_BYTES = 2**20
_LONG_HEADERS = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)


def images(
    part: Part, *, named: Callable[[str], str] = lambda path: PurePosixPath(path).name
) -> Iterator[RowAndBytes]:
    """The members of a tar in their order, each an image; without locations if it is compressed.

    `named` makes an image's name from its path in the tar.
    """
    with Archive(part, decompress=True) as archive:
        for info, fault in archive.files():
            if fault:
                yield archive.refused(info, fault), None
            else:
                yield ImageRow(named(info.name), *archive.location(info)), archive.read(info)


class Archive:
    """A tar that is read from its beginning to its end.

    All methods raise UserError if it is damaged or truncated, or compressed; `decompress` allows
    gzip.
    """

    def __init__(self, part: Part, *, decompress: bool = False) -> None:
        self._part = part
        try:
            file: IO[bytes] = open(part.path, "rb")  # noqa: SIM115, closed by __exit__
        except OSError as error:
            raise UserError(f"{part.path} cannot be read: {error.strerror}.") from error
        if part.offset or part.nbytes is not None:
            size = (
                part.nbytes if part.nbytes is not None else file.seek(0, io.SEEK_END) - part.offset
            )
            file = io.BufferedReader(FileSlice(file, part.offset, size), 1 << 20)
        self._file = file
        start = file.read(4)
        file.seek(0)
        self._is_gzip = decompress and start.startswith(b"\x1f\x8b")
        if self._is_gzip:
            # Buffered, since seeking back would decompress everything from the beginning.
            self._file = io.BufferedReader(gzip.GzipFile(fileobj=file), 1 << 20)  # type: ignore
            return
        for magic, program in _COMPRESSED.items():
            if start.startswith(magic):
                raise UserError(
                    f"{part.path} is compressed and has no random access. Images gain nothing by "
                    f"it: decompress it ({program} {part.path})."
                )

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def infos(self) -> Iterator[tarfile.TarInfo]:
        """All members; then checks the end mark."""
        try:
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
            mark = self._file.read(tarfile.BLOCKSIZE)
        except (*_DAMAGE, ValueError, OverflowError) as error:
            raise self._damaged(str(error)) from error
        except OSError as error:
            raise self._unreadable(error) from error
        if mark.count(0) != tarfile.BLOCKSIZE:
            raise self._damaged("its end is missing")

    def files(self) -> Iterator[tuple[tarfile.TarInfo, str]]:
        """(member, its fault or ""), without folders."""
        return ((info, fault(info)) for info in self.infos() if not info.isdir())

    def location(self, info: tarfile.TarInfo) -> Location:
        """The location of a member's bytes; nowhere if the tar is compressed."""
        if self._is_gzip:
            return Location()
        return Location(self._part.path, self._part.offset + info.offset_data, info.size)

    def refused(self, info: tarfile.TarInfo, fault: str, prefix: str = "") -> ImageRow:
        """The row of a member that must not be read."""
        return ImageRow(prefix + info.name, *self.location(info), faults=(fault,))

    def read(self, info: tarfile.TarInfo) -> bytes:
        """The bytes of a member."""
        try:
            self._file.seek(info.offset_data)
            data = self._file.read(info.size)
        except _DAMAGE as error:
            raise self._damaged(str(error)) from error
        except OSError as error:
            raise self._unreadable(error) from error
        if len(data) != info.size:
            raise self._damaged(f"it ends inside {info.name}")
        return data

    def _unreadable(self, error: OSError) -> UserError:
        if error.errno == errno.EINVAL:  # an offset that no file can have
            return self._damaged("an absurd size")
        return UserError(f"{self._part.path} cannot be read: {error.strerror}.")

    def _damaged(self, why: str) -> UserError:
        inside = f", {self._part.name} in it" if self._part.offset else ""
        return UserError(
            f"{self._part.path}{inside}: not a tar, or damaged or truncated ({why}). Get it again."
        )


class _Header(tarfile.TarInfo):
    """A header that is refused if reading it would take much memory."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if self.size < 0 or (self.type in _LONG_HEADERS and self.size > MAX_HEADER_BYTES):
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


class FileSlice(io.RawIOBase):
    """Bytes [start, start + size) of a file, as a file; shorter where the file ends."""

    def __init__(self, file: IO[bytes], start: int, size: int) -> None:
        self._file, self._start, self._size, self._position = file, start, size, 0

    readable = seekable = lambda self: True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Moves the position, as any file does."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(base + offset, 0)
        return self._position

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Reads into a buffer; returns the number of bytes."""
        wanted = min(len(buffer), self._size - self._position)
        if wanted <= 0:
            return 0
        self._file.seek(self._start + self._position)
        data = self._file.read(wanted)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def close(self) -> None:
        """Closes the file, too."""
        if not self.closed:
            self._file.close()
        super().close()
