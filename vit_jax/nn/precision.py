"""In what numbers a layer computes. Its parameters are float32, whatever this says."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class Precision:
    """The dtypes of a layer's computation.

    Attributes:
      compute: of products and activations.
      softmax: of attention's logits, their softmax and its sums.
      gradient: in what a kernel's gradient leaves its product, and so in what devices sum their
        parts of it; None: in `compute`. From there on gradients are float32.
    """

    compute: Any
    softmax: Any
    gradient: Any | None


FLOAT32 = Precision(compute=jnp.float32, softmax=jnp.float32, gradient=None)
