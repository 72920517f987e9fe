"""NumPy's .npz files. All that a file states about itself is checked before it is used."""

import contextlib
import io
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from vit_jax.core.errors import describe_error, reading
from vit_jax.core.files import atomic_file
from vit_jax.weights.files import BFLOAT16, Tensor, check_shape

MAX_HEADER_BYTES = 64 * 2**10  # for each array
MAX_ARRAYS = 100_000
# A file of zeros alone is compressed to a thousandth, one of weights hardly at all.
MAX_EXPANSION = 100
ALWAYS_ALLOWED_BYTES = 2**30


NUMBERS, TEXT = "fiub", "U"  # kinds of NumPy's dtypes


def read(path: Path, kinds: str = NUMBERS) -> dict[str, Tensor]:
    """Arrays by name, of dtypes of these kinds; their values are read on demand."""
    with _reading(path):
        file = zipfile.ZipFile(path)  # stays open as long as its tensors exist
        members = file.infolist()
        total, size = sum(m.file_size for m in members), path.stat().st_size
        if len(members) > MAX_ARRAYS or total > max(ALWAYS_ALLOWED_BYTES, MAX_EXPANSION * size):
            claimed = f"{len(members):,} arrays of {total:,} bytes in {size:,}"
            raise ValueError(f"{claimed}: a zip bomb. Write it with numpy.savez")
        tensors = {m.filename.removesuffix(".npy"): _tensor(path, file, m, kinds) for m in members}
        if len(tensors) != len(members):
            raise ValueError("several arrays of one name")
    return tensors


def write(path: Path, arrays: Mapping[str, Tensor]) -> None:
    """Writes arrays uncompressed, all of them or no file at all. OSError."""
    with atomic_file(path) as temporary, zipfile.ZipFile(temporary, "w") as file:
        for name, tensor in arrays.items():
            with file.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, tensor.read(), allow_pickle=False)


@contextlib.contextmanager
def _reading(what: object) -> Iterator[None]:
    with reading(what, cure="Get the file anew."):
        try:
            yield
        except RuntimeError as error:  # of encryption, and of methods that zipfile lacks
            raise zipfile.BadZipFile(str(error)) from error


def _tensor(path: Path, file: zipfile.ZipFile, member: zipfile.ZipInfo, kinds: str) -> Tensor:
    name = f"{path}: {member.filename}"
    with _reading(name), file.open(member) as stream:
        start = io.BytesIO(stream.read(MAX_HEADER_BYTES))
    shape, fortran, dtype = _header(name, start, kinds)
    offset, nbytes = start.tell(), member.file_size - start.tell()
    check_shape(name, shape, dtype, nbytes)

    def values() -> np.ndarray:
        with _reading(name), file.open(member) as stream:
            stream.read(offset)
            data = stream.read(nbytes + 1)  # past the end, where zip verifies its checksum
            flat = np.frombuffer(data, dtype)
            return flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)

    return Tensor(shape, dtype, values)


def _header(name: str, start: io.BytesIO, kinds: str) -> tuple[tuple[int, ...], bool, np.dtype]:
    header = np.lib.format
    try:
        version, _ = header.read_magic(start)
        parse = header.read_array_header_1_0 if version == 1 else header.read_array_header_2_0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            shape, fortran, dtype = parse(start, max_header_size=MAX_HEADER_BYTES)
    except Exception as error:  # the type depends on the header
        raise ValueError(f"{name} is not a NumPy array: {describe_error(error)}") from error
    if dtype == np.dtype("V2"):  # how NumPy, which does not know bfloat16, writes it
        dtype = BFLOAT16
    if dtype.kind not in kinds and dtype != BFLOAT16:
        raise ValueError(f"{name} is an array of {dtype}, not of numbers: it would run code")
    return tuple(shape), fortran, dtype
