"""Arrays in a file, known by shape and type before they are read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import ml_dtypes
import numpy as np

FLOATS = tuple(np.dtype(t) for t in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64))


@dataclasses.dataclass(frozen=True)
class Tensor:
    """One array of a file.

    Attributes:
      read: gives it. UserError if its bytes are not what the file says.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[], np.ndarray]


Tensors = Mapping[str, Tensor]


def of_array(array: np.ndarray) -> Tensor:
    """One that is in memory already."""
    return Tensor(array.shape, array.dtype, lambda: array)
