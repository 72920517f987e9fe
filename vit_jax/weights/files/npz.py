"""NumPy's .npz files. All that a file states about itself is checked before it is used."""

import io
import lzma
import math
import warnings
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import numpy as np

from vit_jax.core.errors import UserError
from vit_jax.core.files import atomic_file
from vit_jax.weights.files import BFLOAT16, MAX_DIMENSIONS, MAX_EMPTY, Tensor

MAX_HEADER_BYTES = 64 * 2**10  # for each array
MAX_ARRAYS = 100_000
# A file of zeros alone is compressed to a thousandth, one of weights hardly at all.
MAX_EXPANSION = 100
ALWAYS_ALLOWED_BYTES = 2**30
# What zipfile raises for damage, and for methods and encryption that it lacks.
_UNREADABLE = (OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error, lzma.LZMAError)


def read(path: Path) -> dict[str, Tensor]:
    """Arrays by name; their values are read on demand.

    Raises:
      UserError: a file that is absent, damaged or hostile, or holds anything but numbers.
    """
    try:
        file = zipfile.ZipFile(path)  # stays open as long as its tensors exist
        members = file.infolist()
        _check_sizes(path, members)
        tensors = {m.filename.removesuffix(".npy"): _tensor(path, file, m) for m in members}
    except _UNREADABLE as error:
        raise UserError(f"{path} cannot be read as .npz: {error}. Get the file anew.") from error
    if len(tensors) != len(members):
        raise UserError(f"{path} has several arrays of one name.")
    return tensors


def write(path: Path, arrays: Mapping[str, Tensor]) -> None:
    """Writes arrays uncompressed, all of them or no file at all. OSError."""
    with atomic_file(path) as temporary, zipfile.ZipFile(temporary, "w") as file:
        for name, tensor in arrays.items():
            with file.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, tensor.read(), allow_pickle=False)


def _check_sizes(path: Path, members: list[zipfile.ZipInfo]) -> None:
    total, size = sum(m.file_size for m in members), path.stat().st_size
    if len(members) > MAX_ARRAYS:
        raise UserError(f"{path} has {len(members):,} entries; {MAX_ARRAYS:,} is the limit.")
    if total > max(ALWAYS_ALLOWED_BYTES, MAX_EXPANSION * size):
        raise UserError(
            f"{path} of {size:,} bytes claims to hold {total:,}: that is not a file of weights "
            "but a zip bomb. Write the arrays with numpy.savez, which does not compress them."
        )


def _tensor(path: Path, file: zipfile.ZipFile, member: zipfile.ZipInfo) -> Tensor:
    name = f"{path}: {member.filename}"
    if not member.filename.endswith(".npy"):
        raise UserError(f"{name} is not an array; all entries of an .npz end in .npy.")
    with file.open(member) as stream:
        shape, fortran, dtype, offset = _header(name, stream)
    nbytes = math.prod(shape) * dtype.itemsize
    if offset + nbytes != member.file_size:
        raise UserError(
            f"{name} says {dtype} of the shape {str(shape)[:100]}, {nbytes:,} bytes, but has "
            f"{member.file_size - offset:,}: the file is damaged."
        )

    def values() -> np.ndarray:
        try:
            with file.open(member) as stream:
                stream.read(offset)
                data = stream.read(nbytes + 1)  # past the end, where zip verifies its checksum
        except _UNREADABLE as error:
            raise UserError(f"{name} cannot be read: {error}. Get the file anew.") from error
        if len(data) != nbytes:
            raise UserError(f"{name} has {len(data):,} bytes instead of {nbytes:,}: damaged.")
        flat = np.frombuffer(data, dtype)
        return flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)

    return Tensor(shape, dtype, values)


def _header(name: str, stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype, int]:
    """(shape, whether in Fortran's order, dtype, bytes before the values)"""
    start = stream.read(12)
    if len(start) < 12 or start[:6] != b"\x93NUMPY" or start[6] not in (1, 2, 3):
        raise UserError(f"{name} is not a NumPy array.")
    width = 2 if start[6] == 1 else 4
    length = int.from_bytes(start[8 : 8 + width], "little")
    if length > MAX_HEADER_BYTES:
        raise UserError(f"{name} has a header of {length:,} bytes; {MAX_HEADER_BYTES:,} is enough.")
    header = start[8:] + stream.read(8 + width + length - len(start))
    parse = (
        np.lib.format.read_array_header_1_0 if width == 2 else np.lib.format.read_array_header_2_0
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            shape, fortran, dtype = parse(io.BytesIO(header), max_header_size=MAX_HEADER_BYTES)
    except Exception as error:  # the type depends on the header
        raise UserError(f"{name} has a header that cannot be read: {error}.") from error
    if dtype.hasobject:
        raise UserError(
            f"{name} holds Python objects, which are a pickle: to read it would run code that the "
            "file brings. Write plain arrays of numbers instead."
        )
    if dtype == np.dtype("V2"):  # how NumPy, which does not know bfloat16, writes it
        dtype = BFLOAT16
    if dtype.kind not in "fiub" and dtype != BFLOAT16:
        raise UserError(f"{name} is an array of {dtype}, not of numbers.")
    if any(side < 0 for side in shape) or len(shape) > MAX_DIMENSIONS:
        raise UserError(f"{name} has the shape {str(shape)[:100]}, of {len(shape)} dimensions.")
    if 0 in shape and math.prod(side for side in shape if side) > MAX_EMPTY:
        raise UserError(f"{name} is empty, but has the shape {str(shape)[:100]}.")
    return tuple(shape), fortran, dtype, 8 + width + length
