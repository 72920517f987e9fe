"""The device's rates: matrix products of several sizes, and copying. In its own process.

Answers with a line of JSON for each. Random data: on zeros a device runs faster than on any others.
"""

import json
import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
from absl import app, flags

from benchmarks.on_accelerator import COPY

_SIDES = flags.DEFINE_list("sides", ["4096", "8192", "16384"], "Of square matrices.")
_COPY_MIB = flags.DEFINE_integer("copy_mib", 4096, "Of the array that is copied.")
_REPEATS = flags.DEFINE_integer("repeats", 7, "How often each is measured.")

SECS = 0.05  # what is timed at once takes about this long


def main(_: list[str]) -> None:
    """Measures and answers."""
    for side in map(int, _SIDES.value):
        a, b = (
            jax.random.normal(key, (side, side), jnp.bfloat16)
            for key in jax.random.split(jax.random.key(0))
        )
        product = jax.jit(jnp.dot)
        secs = median_secs(lambda product=product, a=a, b=b: product(a, b))
        answer(f"bfloat16 product, {side} x {side}", 2 * side**3 / secs / 1e12, "TFLOP/s")
    array = jax.random.bits(jax.random.key(1), (_COPY_MIB.value, 2**19), jnp.uint16)
    copy = jax.jit(lambda x: x ^ 1)
    secs = median_secs(lambda: copy(array))
    answer(COPY, 2 * array.nbytes / secs / 1e9, "GB/s")


def median_secs(work: Callable[[], jax.Array]) -> float:
    """Seconds of one call, of many that wait for each other on the device alone."""
    jax.block_until_ready(work())
    number = max(1, int(SECS / seconds(work, 1)))
    return statistics.median(seconds(work, number) / number for _ in range(_REPEATS.value))


def seconds(work: Callable[[], jax.Array], number: int) -> float:
    """Seconds of so many calls."""
    start = time.perf_counter()
    for _ in range(number):
        result = work()
    jax.block_until_ready(result)
    return time.perf_counter() - start


def answer(case: str, value: float, unit: str) -> None:
    """Writes a line of JSON."""
    print(json.dumps({"case": case, "value": float(f"{value:.5g}"), "unit": unit}), flush=True)


if __name__ == "__main__":
    app.run(main)
