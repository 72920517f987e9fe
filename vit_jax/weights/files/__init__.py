"""Arrays in files, whose shapes and types are known before they are read."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import ml_dtypes
import numpy as np

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
# Limits on shapes that a file states, since a header costs its writer nothing.
MAX_DIMENSIONS = 32  # NumPy has 64; arrays of models have six at most
MAX_EMPTY = 2**40  # elements of an empty array, not counting its axes of size 0


@dataclasses.dataclass(frozen=True)
class Tensor:
    """An array of a file."""

    shape: tuple[int, ...]
    dtype: np.dtype
    # Gives the array. UserError if its bytes are not as the file says.
    read: Callable[[], np.ndarray]


Tensors = Mapping[str, Tensor]


def listed(items: Sequence[object], limit: int = 5) -> str:
    """The first of `items` for a message, shortened, and the number of the others."""
    more = len(items) - limit
    shown = ", ".join(str(item)[:60] for item in items[:limit])
    return shown + (f" and {more:,} more" if more > 0 else "")


def from_array(array: np.ndarray) -> Tensor:
    """A tensor of an array in memory."""
    return Tensor(array.shape, array.dtype, lambda: array)


def check_shape(name: str, shape: Sequence[int], dtype: np.dtype, nbytes: int) -> None:
    """Raises ValueError for a shape that NumPy cannot have, or of another number of bytes."""
    if (
        len(shape) > MAX_DIMENSIONS
        or any(side < 0 for side in shape)
        or math.prod(shape) * dtype.itemsize != nbytes
        or math.prod(filter(None, shape)) > max(MAX_EMPTY, nbytes)
    ):
        stated = f"{dtype} {str(tuple(shape))[:100]}, {len(shape)} axes"
        raise ValueError(f"{name} says {stated}, but has {nbytes:,} bytes")
