"""Random data and the measured rate of matrix products, for the contenders in JAX."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.contenders import Contender, Shape, side


def images_and_labels(shape: Shape) -> tuple[np.ndarray, np.ndarray]:
    """uint8 [B, H, W, 3] and int32 [B], random."""
    rng = np.random.default_rng(0)
    size = (shape.batch, shape.image_px, shape.image_px, 3)
    images = rng.integers(0, 256, size, dtype=np.uint8)
    return images, rng.integers(0, shape.classes, shape.batch).astype(np.int32)


def contender(step: Callable[[], float], dtype: str, compile_secs: float) -> Contender:
    """A contender from its step, with the rate of products and peak memory measured here."""
    n = side(jax.default_backend() != "cpu")
    key = jax.random.key(0)
    a, b = (jax.random.normal(k, (n, n), jnp.dtype(dtype)) for k in jax.random.split(key))
    product = jax.jit(jnp.dot)
    return Contender(
        step=step,
        matrix_product=lambda: jax.block_until_ready(product(a, b)),
        matrix_product_flops=2.0 * n**3,
        peak_bytes=_peak_bytes,
        compile_secs=compile_secs,
    )


def _peak_bytes() -> int | None:
    statistics: dict[str, Any] = jax.local_devices()[0].memory_stats() or {}
    return statistics.get("peak_bytes_in_use")
