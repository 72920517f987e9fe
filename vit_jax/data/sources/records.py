"""Random access to the records of a split: ArrayRecord and TFRecord files.

An ArrayRecord file (https://github.com/google/array_record) has an index. The start of each
record of a TFRecord file is determined once, checked and cached: beside the data where that is
writable, else in the user's cache folder. A TFRecord is its length (uint64), a checksum of that,
the data, and a checksum of the data (uint32 each, masked CRC-32C; all little-endian):
https://www.tensorflow.org/tutorials/load_data/tfrecord
"""

import concurrent.futures
import contextlib
import functools
import os
import shutil
import struct
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import filelock
import google_crc32c
import numpy as np

from vit_jax.core.errors import UserError, reading, writing
from vit_jax.core.files import atomic_file, cache_dir, delete_leftovers
from vit_jax.core.screen import format_bytes
from vit_jax.core.waiting import waiting_for
from vit_jax.data import files
from vit_jax.data.source import FileCache, digest

_OPENING_THREADS = 16  # threads that wait for the disk
_OPEN_FILES = 256  # well below the usual limit of 1,024 a process
_READ_BYTES = 32 * 1024
_OWN_SCHEME = "gs://"  # of the remote files that array_record itself opens

_HEADER = struct.Struct("<QI")  # length, its checksum
_CHECKSUM = struct.Struct("<I")
_OVERHEAD_BYTES = _HEADER.size + _CHECKSUM.size
_CACHE_FOLDER = ".vit_jax"  # of offsets, beside the data


class ArrayRecords:
    """The ArrayRecord files of a split, in order; record k of file f is `read(f, [k])`."""

    def __init__(self, paths: Sequence[str | Path], num_records: Sequence[int]) -> None:
        """`num_records` of each file as published: UserError if a file holds more or fewer.

        That takes a file's last bytes only, 0.1 ms a file where they are on a local disk.
        """
        self._files = [str(path) for path in paths]
        _check_local([path for path in self._files if not path.startswith(_OWN_SCHEME)])
        self._num_records = list(num_records)
        self._reader = functools.lru_cache(_OPEN_FILES)(self._open)
        with concurrent.futures.ThreadPoolExecutor(_OPENING_THREADS) as pool:
            list(pool.map(self._reader, range(len(self._files))))

    def read(self, file: int, records: Sequence[int]) -> list[bytes]:
        """The data of the records; the format's own checksums are verified."""
        path, some = self._files[file], ", ".join(map(str, records[:4]))
        where = f"{path}, records {some}{', ...' if len(records) > 4 else ''}"
        with waiting_for(lambda: where):
            reader = self._reader(file)
            try:
                return files.retried(path, lambda: reader.read(list(records)))
            except (RuntimeError, ValueError, IndexError) as error:
                raise _corrupt(f"one of {where},", error) from error

    def _open(self, file: int) -> Any:
        from array_record.python.array_record_module import ArrayRecordReader

        path, expected = self._files[file], self._num_records[file]
        reader = files.retried(
            path,
            lambda: ArrayRecordReader(
                path, options="readahead_buffer_size:0", file_reader_buffer_size=_READ_BYTES
            ),
        )
        # A truncated file opens as one without records, and then reads as empty strings.
        if not reader.ok() or reader.num_records() != expected:
            raise _corrupt(path, _other_number(reader.num_records(), expected))
        return reader


def _check_local(paths: Sequence[str | Path]) -> None:
    for path in filter(files.is_remote, paths):
        raise UserError("is read from a local copy: set input.cache=FOLDER.", field=str(path))


def _corrupt(where: str | Path, reason: object = "") -> UserError:
    more = f": {reason}" if reason else ""
    return UserError(f"{where} is corrupt or cut off{more}. Get the file again.")


def _other_number(found: int, expected: int) -> str:
    return f"{found} records can be found, but dataset_info.json says {expected}"


class TFRecords:
    """The TFRecord files of a split, in order; record k of file f is `read(f, [k])`."""

    def __init__(self, paths: Sequence[str | Path], num_records: Sequence[int]) -> None:
        """`num_records` of each file as published: UserError if a file holds more or fewer."""
        _check_local(paths)
        self._files = [Path(path) for path in paths]
        self._offsets = cached_offsets(self._files)
        for file, offsets, expected in zip(self._files, self._offsets, num_records, strict=True):
            if len(offsets) - 1 != expected:
                raise _corrupt(file, _other_number(len(offsets) - 1, expected))

    def read(self, file: int, records: Sequence[int]) -> list[bytes]:
        """The data of the records, checked against their checksums."""
        path, offsets = self._files[file], self._offsets[file]

        def read_all() -> list[bytes]:
            with path.open("rb", buffering=0) as handle:
                return [
                    _read_tfrecord(handle.fileno(), path, i, int(offsets[i]), int(offsets[i + 1]))
                    for i in records
                ]

        with reading(path), waiting_for(lambda: str(path)):
            return files.retried(str(path), read_all)


def record_offsets(file: Path) -> np.ndarray:
    """The start of each record, from header to header, then the file's size: int64 [n + 1]."""
    offsets = [0]
    with file.open("rb", buffering=0) as handle:
        size_bytes = os.fstat(handle.fileno()).st_size
        while offsets[-1] < size_bytes:
            header = os.pread(handle.fileno(), _HEADER.size, offsets[-1]).ljust(_HEADER.size, b"\0")
            length, checksum = _HEADER.unpack(header)
            end = offsets[-1] + _OVERHEAD_BYTES + length
            if masked_crc32c(header[:8]) != checksum or end > size_bytes:
                raise _corrupt(f"{file}, record {len(offsets) - 1} (at byte {offsets[-1]})")
            offsets.append(end)
    return np.array(offsets, np.int64)


def _read_tfrecord(handle: int, file: Path, record: int, start: int, stop: int) -> bytes:
    with waiting_for(lambda: f"{file}, record {record} (at byte {start})"):
        stored = os.pread(handle, stop - start, start)
    data = stored[_HEADER.size : -_CHECKSUM.size]
    if len(stored) != stop - start or masked_crc32c(data) != _CHECKSUM.unpack(stored[-4:])[0]:
        raise _corrupt(f"{file}, record {record}", "wrong checksum")
    return data


def masked_crc32c(data: bytes) -> int:
    """The CRC-32C of `data`, rotated and shifted as TFRecord stores it."""
    crc = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def cached_offsets(paths: Sequence[Path]) -> list[np.ndarray]:
    """The offsets of each file, int64 [n + 1], which are kept for as long as the files are these.

    A cache is written at once or not at all; without a folder to write to there is none.
    """
    names, stamps = "\n".join(path.name for path in paths), _stamps(paths)
    name = f"{digest(names)[:16]}.offsets.npz"
    caches = [folder / name for folder in _cache_folders(paths)]
    for path in caches:
        # Every fault of a cache has the same result; zip checks the CRC of its content.
        with contextlib.suppress(*files.NPZ_FAULTS), np.load(path) as cache:
            if np.array_equal(cache["stamps"], stamps):
                return np.split(cache["offsets"], cache["ends"][:-1])
    with concurrent.futures.ThreadPoolExecutor(_OPENING_THREADS) as pool:
        offsets = list(pool.map(record_offsets, paths))
    arrays = {"stamps": stamps, "ends": np.cumsum(list(map(len, offsets)))}
    for path in caches:
        with contextlib.suppress(OSError):
            files.write_npz(path, **arrays, offsets=np.concatenate(offsets))
            break
    return offsets


def _cache_folders(paths: Sequence[Path]) -> Iterator[Path]:
    data = paths[0].resolve().parent
    if data.stat().st_mode & 0o222:  # a read-only file is respected, also by root
        yield data / _CACHE_FOLDER
    yield cache_dir() / digest(str(data))[:16]


def _stamps(paths: Sequence[Path]) -> np.ndarray:
    """Size in bytes and time of the last change of each file, int64 [files, 2]."""
    stats = [path.stat() for path in paths]
    return np.array([(stat.st_size, stat.st_mtime_ns) for stat in stats], np.int64)


# Copies of record files on a local disk, for data sets behind a network:
#
#     <folder>/<data set>-<hash of its folder and content>/<file>
#
# A file is copied under another name and renamed when it is complete; one process copies, others on
# the same host wait for it. A copy is good if it has the size of the original and is not older.

_COPYING_THREADS = 8  # threads that wait for the network


def copies(
    cache: FileCache, name: str, content: str, paths: Sequence[str], sizes_bytes: Sequence[int]
) -> list[str]:
    """The local paths of `paths`, which are copied if necessary. All of them are in one folder."""
    home, _, _ = paths[0].rpartition("/")
    home = home if files.is_remote(home) else os.path.abspath(home)
    folder = cache.folder / f"{name}-{digest(home + content)[:16]}"
    targets = [folder / path.rpartition("/")[2] for path in paths]
    cure = "What has been copied stays and is used by the next start."
    with writing("input.cache", cache.folder, cure=cure):
        folder.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(folder / ".lock"):
            delete_leftovers(folder)
            missing = [
                (path, target, size)
                for path, target, size in zip(paths, targets, sizes_bytes, strict=True)
                if not _is_good(path, target, size)
            ]
            if missing:
                _check_room(cache, sum(size for _, _, size in missing))
                _copy_all(cache, missing)
    return [str(target) for target in targets]


def _is_good(path: str, target: Path, size_bytes: int) -> bool:
    if files.sizes([target]) != [size_bytes]:
        return False
    return files.is_remote(path) or os.path.getmtime(path) <= target.stat().st_mtime


def _check_room(cache: FileCache, needed_bytes: int) -> None:
    used = sum(path.stat().st_size for path in cache.folder.rglob("*") if path.is_file())
    room = shutil.disk_usage(cache.folder).free
    if cache.limit_bytes is not None:
        room = min(room, cache.limit_bytes - used)
    if needed_bytes > room:
        rule = f"has room for {format_bytes(max(room, 0))} of {format_bytes(needed_bytes)}, by its"
        rule += " disk and input.cache_bytes."
        raise UserError(rule, field="input.cache", value=cache.folder)


def _copy_all(cache: FileCache, missing: Sequence[tuple[str, Path, int]]) -> None:
    total_bytes = sum(size for _, _, size in missing)
    done_bytes, lock = 0, threading.Lock()

    def on_bytes(count: int) -> None:
        nonlocal done_bytes
        with lock:
            done_bytes += count
            cache.progress(min(done_bytes, total_bytes), total_bytes)

    def copy(job: tuple[str, Path, int]) -> None:
        path, target, size = job
        with atomic_file(target) as part:
            files.copy(path, part, on_bytes)
            if part.stat().st_size != size:
                raise UserError(f"{path} changed while it was copied: start the command again.")

    with concurrent.futures.ThreadPoolExecutor(_COPYING_THREADS) as pool:
        list(pool.map(copy, missing))
