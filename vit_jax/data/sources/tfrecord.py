"""Random access to TFRecord files: where each record starts is found once, checked and cached.

A record is its length (uint64), a checksum of that, the data, and a checksum of the data
(uint32 each, masked CRC-32C; all little-endian):
https://www.tensorflow.org/tutorials/load_data/tfrecord
"""

from __future__ import annotations

import concurrent.futures
import os
import struct
from collections.abc import Sequence
from pathlib import Path

import google_crc32c
import numpy as np

from vit_jax.core.errors import UserError
from vit_jax.core.process.waiting import waiting_for
from vit_jax.data import files
from vit_jax.data.sources import offset_cache

_HEADER = struct.Struct("<QI")  # length, its checksum
_CHECKSUM = struct.Struct("<I")
_OVERHEAD_BYTES = _HEADER.size + _CHECKSUM.size
_INDEXING_THREADS = 16  # they wait for the disk


class TFRecords:
    """The TFRecord files of a split, in order; record k of file f is `read(f, [k])`."""

    def __init__(self, paths: Sequence[str | Path], num_records: Sequence[int]) -> None:
        """`num_records` of each file as published: UserError if a file holds more or fewer."""
        remote = [path for path in paths if files.is_remote(path)]
        if remote:
            raise UserError(
                f"{remote[0]}: TFRecord files are read at random from local disks only. Set "
                "input.cache=FOLDER, where the files are copied to, or prepare the data set as "
                "ArrayRecord files."
            )
        self._files = [Path(path) for path in paths]
        self._offsets = offset_cache.load(self._files)
        if self._offsets is None:
            with concurrent.futures.ThreadPoolExecutor(_INDEXING_THREADS) as pool:
                self._offsets = list(pool.map(record_offsets, self._files))
            offset_cache.save(self._files, self._offsets)
        for file, offsets, expected in zip(self._files, self._offsets, num_records, strict=True):
            if len(offsets) - 1 != expected:
                raise UserError(
                    f"{file} holds {len(offsets) - 1} records, but dataset_info.json says "
                    f"{expected}. Get the file again: part of it is missing."
                )

    def read(self, file: int, records: Sequence[int]) -> list[bytes]:
        """The data of the records, checked against their checksums."""
        assert self._offsets is not None
        path, offsets = self._files[file], self._offsets[file]

        def read_all() -> list[bytes]:
            with path.open("rb", buffering=0) as handle:
                return [
                    _read(handle.fileno(), path, i, int(offsets[i]), int(offsets[i + 1]))
                    for i in records
                ]

        try:
            with waiting_for(lambda: str(path)):
                return files.retried(str(path), read_all)
        except OSError as error:
            raise UserError(
                f"{path} cannot be read ({error.strerror}); it could when the run began."
            ) from error


def record_offsets(file: Path) -> np.ndarray:
    """Where each record starts, and at the end the file's size: int64 [n + 1], bytes.

    Walks from header to header. UserError if the file is truncated, or a length is corrupt or
    longer than the file.
    """
    offsets = [0]
    with file.open("rb", buffering=0) as handle:
        size_bytes = os.fstat(handle.fileno()).st_size
        while offsets[-1] < size_bytes:
            header = os.pread(handle.fileno(), _HEADER.size, offsets[-1])
            offsets.append(_record_end(file, offsets, header, size_bytes))
    return np.array(offsets, np.int64)


def _record_end(file: Path, offsets: list[int], header: bytes, size_bytes: int) -> int:
    where = f"{file}, record {len(offsets) - 1} (at byte {offsets[-1]})"
    if len(header) < _HEADER.size:
        raise UserError(f"{where}: the file ends inside it. Get the file again.")
    length, checksum = _HEADER.unpack(header)
    if masked_crc32c(header[:8]) != checksum:
        raise UserError(f"{where}: its length is corrupt (wrong checksum). Get the file again.")
    end = offsets[-1] + _OVERHEAD_BYTES + length
    if end > size_bytes:
        raise UserError(
            f"{where}: {length} bytes long, but the file ends at {size_bytes}. Get the file again."
        )
    return end


def _read(handle: int, file: Path, record: int, start: int, stop: int) -> bytes:
    with waiting_for(lambda: f"{file}, record {record} (at byte {start})"):
        stored = os.pread(handle, stop - start, start)
    data = stored[_HEADER.size : -_CHECKSUM.size]
    if len(stored) != stop - start or masked_crc32c(data) != _CHECKSUM.unpack(stored[-4:])[0]:
        raise UserError(f"{file}, record {record}: corrupt (wrong checksum). Get the file again.")
    return data


def masked_crc32c(data: bytes) -> int:
    """The CRC-32C of `data`, rotated and shifted as TFRecord stores it."""
    crc = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
