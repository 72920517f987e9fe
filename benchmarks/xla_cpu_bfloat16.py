"""A dense layer's products in bfloat16 on a CPU, and two ways to write one; needs JAX alone.

    JAX_PLATFORMS=cpu python benchmarks/xla_cpu_bfloat16.py

On processors that multiply bfloat16 (AVX512_BF16), XLA has fast products for it (YNN). Under JAX
0.12 it takes them for the forward pass and the gradient of the input, but not for the gradient of
the kernel, x^T dy, with its rows in one axis: Eigen computes that after both factors have been
converted to float32. With the rows in two axes XLA transposes x before it multiplies, and takes the
fast product; `affine` in vit_jax/models/layers/linear.py is written so. Meant for XLA's tracker.

Prints CPU milliseconds, 10^9 operations per CPU-second, and who computes the product.
"""

import re
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp

REPETITIONS = 20
# Rows (in two axes), inputs and outputs of a ViT-S/16's layers with 16 images.
ROWS = (16, 197)
LAYERS = ((384, 1536), (1536, 384), (384, 1152))


def forms() -> dict[str, Callable[..., jax.Array]]:
    """Products by name; of x [16, 197, inputs], dy [16, 197, outputs], w [inputs, outputs]."""
    rows = lambda a: a.reshape(-1, a.shape[-1])
    return {
        "x w": lambda x, dy, w: rows(x) @ w,
        "dy w^T": lambda x, dy, w: jnp.einsum("nm,km->nk", rows(dy), w),
        "x^T dy, one axis of rows": lambda x, dy, w: rows(x).T @ rows(dy),
        "x^T dy, two axes of rows": lambda x, dy, w: jnp.tensordot(x, dy, axes=((0, 1), (0, 1))),
    }


def measure(f: Callable[..., jax.Array], *factors: jax.Array) -> tuple[float, str]:
    """CPU-seconds of a call, and what computes its product."""
    compiled = jax.jit(f).lower(*factors).compile()
    kernel = "YNN" if "__ynn_fusion" in compiled.as_text() else "Eigen"
    (dtype,) = set(re.findall(r"= (\w+)\[[\d,]*\](?:\{[\d,]*\})? dot\(", compiled.as_text()))
    compiled(*factors).block_until_ready()
    start = time.process_time()
    for _ in range(REPETITIONS):
        compiled(*factors).block_until_ready()
    return (time.process_time() - start) / REPETITIONS, f"{kernel}, to {dtype}"


def main() -> None:
    """Prints the table."""
    print(f"jax {jax.__version__}\n")
    print(f"{'inputs':>6} {'outputs':>7}  {'product':24} {'CPU ms':>6} {'GFLOP/s':>7}  by")
    for inputs, outputs in LAYERS:
        keys = jax.random.split(jax.random.key(0), 3)
        shapes = ((*ROWS, inputs), (*ROWS, outputs), (inputs, outputs))
        factors = [
            jax.random.normal(key, shape, jnp.bfloat16)
            for key, shape in zip(keys, shapes, strict=True)
        ]
        operations = 2 * ROWS[0] * ROWS[1] * inputs * outputs
        for name, f in forms().items():
            secs, kernel = measure(f, *factors)
            rate = operations / secs / 1e9
            print(f"{inputs:6} {outputs:7}  {name:24} {1e3 * secs:6.1f} {rate:7.0f}  {kernel}")


if __name__ == "__main__":
    main()
