"""Random access to ArrayRecord files (https://github.com/google/array_record)."""

from __future__ import annotations

import concurrent.futures
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vit_jax.core.errors import UserError
from vit_jax.core.process.waiting import waiting_for
from vit_jax.data import files

_OPEN_FILES = 256  # well below the usual limit of 1,024 a process
_READ_BYTES = 32 * 1024
_OWN_SCHEME = "gs://"  # of the remote files that array_record itself opens
_OPENING_THREADS = 16  # they wait for the disk


class ArrayRecords:
    """The ArrayRecord files of a split, in order; record k of file f is `read(f, [k])`."""

    def __init__(self, paths: Sequence[str | Path], num_records: Sequence[int]) -> None:
        """`num_records` of each file as published: UserError if a file holds more or fewer.

        That takes a file's last bytes only, 0.1 ms a file where they are on a local disk.
        """
        self._files = [str(path) for path in paths]
        unread = [p for p in self._files if files.is_remote(p) and not p.startswith(_OWN_SCHEME)]
        if unread:
            raise UserError(
                f"{unread[0]}: array_record reads local files and those at {_OWN_SCHEME} only. Set "
                "input.cache=FOLDER, where the files are copied to."
            )
        self._num_records = list(num_records)
        self._reader = functools.lru_cache(_OPEN_FILES)(self._open)
        with concurrent.futures.ThreadPoolExecutor(_OPENING_THREADS) as pool:
            list(pool.map(self._reader, range(len(self._files))))

    def read(self, file: int, records: Sequence[int]) -> list[bytes]:
        """The data of the records; the format's own checksums are verified."""
        with waiting_for(lambda: f"{self._files[file]}, records {_few(records)}"):
            reader = self._reader(file)
            try:
                return files.retried(self._files[file], lambda: reader.read(list(records)))
            except (RuntimeError, ValueError, IndexError) as error:
                raise UserError(
                    f"{self._files[file]}, one of the records {_few(records)}: corrupt ({error}). "
                    "Get the file again."
                ) from error

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
            raise UserError(
                f"{path} is corrupt or truncated: {reader.num_records()} records can be found, but "
                f"dataset_info.json says {expected}. Get the file again."
            )
        return reader


def _few(records: Sequence[int]) -> str:
    shown = ", ".join(map(str, records[:4]))
    return f"{shown}, ..." if len(records) > 4 else shown
