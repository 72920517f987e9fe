"""The library that an array belongs to."""

from types import ModuleType
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

Array = TypeVar("Array", np.ndarray, jax.Array)


def namespace(x: Any) -> ModuleType:
    """`jax.numpy` for JAX's arrays, also inside a compiled function; `numpy` for its own."""
    return jnp if isinstance(x, jax.Array) else np
