"""The list of an image folder, without a Python object for each image; and its index on disk.

To list millions of files takes minutes. So the list of a large local folder is kept in a file,
`.vit_jax-<key>.npz` in that folder, or in the user's cache folder if that one cannot be written. A
later start uses it, at the cost of a look at each folder instead of each file, as long as

- each folder that was listed has the inode and the times that it had: adding, removing and renaming
  change them, and no program sets back the time of a change of the inode;
- the entries of the uppermost, whose times change as the index is written, have the same names;
- a sample of the files have the same sizes: writing a file again in place changes no folder;
- the code that lists is the same.

It is not written where a change may not show: for folders that changed just before, for links to
files, and on file systems whose times tell little. It is a file, since other programs take any
folder there for a class; it is read, not mapped, since another host that replaces it would take the
mapped one away on a network's disk.
"""

import contextlib
import json
import os
import time
import unicodedata
from collections.abc import Iterable, Sequence, Set
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vit_jax.core import arrays, class_names, image_files
from vit_jax.core.files import cache_dir
from vit_jax.data import files
from vit_jax.data.source import digest, row_offsets
from vit_jax.data.sources import split_names, splits

MIN_FILES = 20_000  # a second of listing
SETTLED_SECS = 60  # above the unit of files' times, and the difference of two hosts' clocks
# Linux's, on which a folder's times change with its entries, whoever changes them: not so on FUSE.
_FILE_SYSTEMS = frozenset({
    "ext2", "ext3", "ext4", "xfs", "zfs", "f2fs", "tmpfs", "overlay", "nfs", "nfs4", "lustre",
    "ceph",
})  # fmt: skip
PREFIX = ".vit_jax-"
_SAMPLE = 1_000  # files whose sizes are compared
_CHUNK = 2**16  # images whose text is made at once
_FAULTS = (*files.NPZ_FAULTS, MemoryError, OverflowError, AttributeError)


class Image(NamedTuple):
    """An image file, by the order of images."""

    order: str  # the SHA-256 of its class and file name
    folder: str
    class_name: str
    name: str
    size_bytes: int

    @property
    def path(self) -> str:
        """The file's path."""
        return files.join(self.folder, self.name)


class Listing(NamedTuple):
    """The images of a split in order."""

    lines: np.ndarray  # uint8: "\n<class>/<file> <bytes>" of each, as the fingerprint has it
    offsets: np.ndarray  # int64 [n + 1]: where the line of each begins
    places: np.ndarray  # int32 [n]: the folder of each
    folders: list[str]
    labels: list[int]  # of the folders
    class_names: list[str]
    split_sizes: dict[str, int]  # images of each split, as far as they were listed
    notes: list[str]

    @classmethod
    def pack(
        cls,
        images: Sequence[Image],
        classes: list[str],
        split_sizes: dict[str, int],
        notes: Sequence[str],
    ) -> "Listing":
        """The listing of `images`, which are in order."""
        lines = [
            f"\n{image.class_name}/{image.name} {image.size_bytes}".encode(errors="surrogateescape")
            for image in images
        ]
        folders = {image.folder: image.class_name for image in images}
        numbers = {folder: number for number, folder in enumerate(folders)}
        labels = {name: label for label, name in enumerate(classes)}
        return cls(
            np.frombuffer(b"".join(lines), np.uint8),
            row_offsets(np.fromiter(map(len, lines), np.int64, len(lines))),
            np.fromiter((numbers[image.folder] for image in images), np.int32, len(lines)),
            list(folders),
            [labels[name] for name in folders.values()],
            classes,
            split_sizes,
            list(notes),
        )

    def slice(self, start: int, stop: int) -> "Listing":
        """Images [start, stop)."""
        return self._replace(offsets=self.offsets[start : stop + 1], places=self.places[start:stop])

    def image(self, index: int) -> tuple[str, int, int]:
        """(path, label, size in bytes) of an image."""
        line = self.lines[self.offsets[index] : self.offsets[index + 1]].tobytes()
        text, _, size = line.decode(errors="surrogateescape").rpartition(" ")
        place = self.places[index]
        path = files.join(self.folders[place], text.partition("/")[2])
        return path, self.labels[place], int(size)

    def image_labels(self) -> np.ndarray:
        """The label of each image, int32 [n]."""
        return np.array(self.labels, np.int32)[self.places]

    def fingerprint(self) -> str:
        """The SHA-256 of the classes, and of the class, name and size of each image."""
        result = sha256(_composed("\n".join(self.class_names)))
        for start in range(0, len(self.places), _CHUNK):
            ends = self.offsets[start : start + _CHUNK + 1][[0, -1]]
            text = self.lines[slice(*ends)].tobytes().decode(errors="surrogateescape")
            result.update(_composed(text))
        return result.hexdigest()


def _composed(text: str) -> bytes:
    return class_names.normal(text).encode(errors="surrogateescape")


class FolderIndex:
    """The listing of a split of a folder, stored."""

    def __init__(self, root: str, wanted: str, *, code: str) -> None:
        """`wanted`: what the listing depends on besides the folder; `code`: the file that lists."""
        self._root = root
        self._started = time.time()
        self._paths: list[Path] = []
        if files.is_remote(root):
            return
        with contextlib.suppress(OSError):  # without one of these there is no index
            self._code = digest(_code(code))
            self._names = _names(root)
            name = f"{PREFIX}{digest(f'{root} {os.path.abspath(root)} {wanted}')[:16]}.npz"
            self._paths = [cache_dir() / "folders" / name]
            if os.stat(root).st_mode & 0o222:  # a read-only folder is respected, also by root
                self._paths.insert(0, Path(root, name))

    def read(self) -> Listing | None:
        """The listing; None if none is stored that describes the folder as it is."""
        for path in self._paths:
            with contextlib.suppress(*_FAULTS), np.load(path) as arrays:
                about = json.loads(arrays["about"].tobytes())
                now = [self._code, self._names, _stamps(about["stamps"])]
                if now != [about["code"], about["names"], about["stamps"]]:
                    continue
                stored = [arrays[name] for name in Listing._fields[:3]]
                listing = Listing(*stored, *about["listing"])
                # The archive's checksums hold for arrays that are read in full.
                if _shapes(listing) == about["shapes"] and _sizes_hold(listing):
                    return listing
        return None

    def write(self, listing: Listing, folders: Set[str]) -> None:
        """Stores the listing, which the content of `folders` led to, if later changes will show."""
        num_listed = max(listing.split_sizes.values())
        if num_listed < MIN_FILES or self._root in listing.folders or not self._paths:
            return
        with contextlib.suppress(OSError):
            stamps = _stamps(folders - {self._root})
            settled_ns = (self._started - SETTLED_SECS) * 1e9
            if (
                any(ctime_ns >= settled_ns for _, _, ctime_ns in stamps.values())
                or not _file_systems(stamps) <= _FILE_SYSTEMS
                or _names(self._root) != self._names
            ):
                return
            about = {
                "code": self._code,
                "names": self._names,
                "stamps": stamps,
                "shapes": _shapes(listing),
                "listing": listing[3:],
            }
            arrays = dict(zip(Listing._fields[:3], listing[:3], strict=True))
            arrays["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
            for path in self._paths:
                with contextlib.suppress(OSError):
                    files.write_npz(path, **arrays)
                    return


def _code(listing: str) -> bytes:
    """The versions of what lists files: of this code, and of Unicode."""
    modules = (arrays, class_names, image_files, files, splits, split_names)
    read = [listing, __file__, *(str(module.__file__) for module in modules)]
    sources = [Path(source).read_bytes() for source in read]
    return b"".join([unicodedata.unidata_version.encode(), *sources])


def _names(root: str) -> str:
    """Changes with the names and kinds of a folder's entries; indexes do not count."""
    with os.scandir(root) as entries:
        names = [entry.name + "/" * entry.is_dir() for entry in entries]
    own = (PREFIX, f".{PREFIX}")  # also while it is written
    return digest("\0".join(sorted(name for name in names if not name.startswith(own))))


def _stamps(folders: Iterable[str]) -> dict[str, list[int]]:
    stamps = {}
    for folder in folders:
        os.scandir(folder).close()  # NFS keeps what it knows of a folder until that is opened
        stat = os.stat(folder)
        stamps[folder] = [stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns]
    return stamps


def _shapes(listing: Listing) -> list[str]:
    return [f"{array.dtype.str} {array.shape}" for array in listing[:3]]


def _sizes_hold(listing: Listing) -> bool:
    for index in np.linspace(0, len(listing.places) - 1, _SAMPLE).astype(int):
        path, _, size_bytes = listing.image(index)
        if os.stat(path).st_size != size_bytes:
            return False
    return True


def _file_systems(folders: Iterable[str]) -> set[str]:
    """The types of the file systems that the folders are on; "" where Linux does not say."""
    types = {}
    for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
        device, kind = line.split()[2], line.partition(" - ")[2].split()[0]
        types[os.makedev(*map(int, device.split(":")))] = kind
    return {types.get(os.stat(folder).st_dev, "") for folder in folders}
