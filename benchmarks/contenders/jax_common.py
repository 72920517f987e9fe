"""Random data, compilation and the measured rate of matrix products, for contenders in JAX."""

import functools
import time
from collections.abc import Callable
from typing import Any, SupportsFloat

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.contenders import Contender, Shape, sides
from vit_jax.parallel.chips import Options, compiler_options, supported_compiler_options
from vit_jax.tools.plan.compiled import peak_bytes

_HIT = "/jax/compilation_cache/cache_hits"


def images_and_labels(shape: Shape) -> tuple[np.ndarray, np.ndarray]:
    """uint8 [B, H, W, 3] and int32 [B], random."""
    rng = np.random.default_rng(0)
    size = (shape.batch, shape.image_px, shape.image_px, 3)
    images = rng.integers(0, 256, size, dtype=np.uint8)
    return images, rng.integers(0, shape.classes, shape.batch).astype(np.int32)


def project_options(device: jax.Device) -> Options | None:
    """XLA's options for this project's step on such a device, for a peer's; None: it has none."""
    return supported_compiler_options(compiler_options(device), device)


def compiled(lowered: Any) -> tuple[Any, float | None]:
    """The executable, and the seconds that compiling took; None if it came from JAX's cache."""
    events: list[str] = []
    jax.monitoring.register_event_listener(lambda event, **_: events.append(event))
    start = time.perf_counter()
    executable = lowered.compile()
    secs = time.perf_counter() - start
    return executable, None if _HIT in events else secs


def contender(
    step: Callable[[], SupportsFloat], dtype: str, executable: Any, compile_secs: float | None
) -> Contender:
    """A contender from its step, with the rate of products and peak memory measured here."""
    n, number = sides(jax.default_backend() != "cpu")
    product = jax.jit(jnp.dot)

    @functools.cache  # not before they are needed: they would count as memory of the first step
    def factors() -> list[jax.Array]:
        keys = jax.random.split(jax.random.key(0))
        return [jax.random.normal(key, (n, n), jnp.dtype(dtype)) for key in keys]

    return Contender(
        step=step,
        matrix_product=lambda: jax.block_until_ready([product(*factors()) for _ in range(number)]),
        matrix_product_flops=2.0 * n**3 * number,
        peak_bytes=_peak_bytes,
        compile_secs=compile_secs,
        planned_bytes=peak_bytes(executable.memory_analysis()),
    )


def _peak_bytes() -> int | None:
    statistics: dict[str, Any] = jax.local_devices()[0].memory_stats() or {}
    return statistics.get("peak_bytes_in_use")
