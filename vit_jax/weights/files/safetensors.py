"""Safetensors files: a length, a header in JSON, then the arrays' bytes one after the other.

The safetensors library is not used: it reads duplicate names and shapes that NumPy cannot have,
copies arrays instead of mapping them, and wants all arrays in memory to write.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from vit_jax.core.errors import reading
from vit_jax.core.files import atomic_file
from vit_jax.weights.files import BFLOAT16, Tensor, check_shape

MAX_HEADER_BYTES = 16 * 2**20  # a ViT's has about 50 kB
LENGTH_BYTES = 8
METADATA = "__metadata__"
MAX_NAME_CHARACTERS = 1000
DTYPES = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": BFLOAT16,
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    **{f"{kind}{8 * n}": np.dtype(f"<{kind.lower()}{n}") for kind in "IU" for n in (8, 4, 2, 1)},
    "BOOL": np.dtype("?"),
}
_ANEW = "Get the file anew."


def read(path: Path) -> dict[str, Tensor]:
    """Arrays by name, mapped into memory on demand."""
    with reading(path, cure=_ANEW):
        header, start = _header(path)
        header.pop(METADATA, None)
        size = path.stat().st_size - start
        spans = {name: _span(path, name, entry, size) for name, entry in header.items()}
        end = 0
        for name, (first, last) in sorted(spans.items(), key=lambda item: item[1]):
            if first != end:
                raise ValueError(f"{name} begins at byte {first:,} of the data, expected {end:,}")
            end = last
        if end != size:
            raise ValueError(f"its arrays end at byte {end:,} of the data, which has {size:,}")
    return {name: _tensor(path, header[name], start + spans[name][0]) for name in header}


def write(path: Path, arrays: Mapping[str, Tensor]) -> None:
    """Writes arrays as float32, all of them or no file at all. OSError."""
    header: dict[str, Any] = {METADATA: {"format": "pt"}}  # transformers requires it
    end = 0
    for name, tensor in arrays.items():
        first, end = end, end + math.prod(tensor.shape) * 4
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [first, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % LENGTH_BYTES)
    with atomic_file(path) as temporary, temporary.open("wb") as file:
        file.write(len(text).to_bytes(LENGTH_BYTES, "little") + text)
        for tensor in arrays.values():
            file.write(np.ascontiguousarray(tensor.read(), "<f4").data)


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """(the header, bytes before the data)"""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        if length > min(size - LENGTH_BYTES, MAX_HEADER_BYTES):
            raise ValueError(f"a header of {length:,} bytes in a file of {size:,}")
        header = json.loads(file.read(length), object_pairs_hook=_unique)
    if not isinstance(header, dict):
        raise ValueError("its header is not a JSON object")
    return header, LENGTH_BYTES + length


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("a name is there twice")
    return entries


def _span(path: Path, name: str, entry: Any, size: int) -> tuple[int, int]:
    """Position of an array in the data, once its type and shape agree with its length."""
    with reading(f"{path}: {name[:100]}", str(entry)[:100], cure=_ANEW):
        try:
            dtype, shape, (first, last) = (
                DTYPES[entry["dtype"]],
                entry["shape"],
                entry["data_offsets"],
            )
            if not all(type(n) is int and n >= 0 for n in (*shape, first, last)):
                raise ValueError("shape and data_offsets are whole numbers")
        except (KeyError, TypeError) as error:
            raise ValueError(f"not an array of a type that is read here: {error!r}") from error
        if len(name) > MAX_NAME_CHARACTERS or not first <= last <= size:
            raise ValueError(f"not in {size:,} bytes, or a name of {len(name):,} characters")
    check_shape(f"{path}: {name}", shape, dtype, last - first)
    return first, last


def _tensor(path: Path, entry: dict[str, Any], offset: int) -> Tensor:
    array_shape, dtype = tuple(entry["shape"]), DTYPES[entry["dtype"]]

    def values() -> np.ndarray:
        if math.prod(array_shape) == 0:  # nothing can be mapped
            return np.zeros(array_shape, dtype)
        return np.memmap(path, dtype, "r", offset, array_shape)

    return Tensor(array_shape, dtype, values)
