"""Arrays in a file, known by shape and type before they are read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import ml_dtypes
import numpy as np

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


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


def is_floating(dtype: np.dtype) -> bool:
    """Whether it is of floating-point numbers; bfloat16 is none of NumPy's own."""
    return dtype.kind == "f" or dtype == BFLOAT16


def of_array(array: np.ndarray) -> Tensor:
    """One that is in memory already."""
    return Tensor(array.shape, array.dtype, lambda: array)
