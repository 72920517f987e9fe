"""Faster forms of what the layers compute plainly, by platform: one table.

Each gives the same numbers, but for the order of sums. Programs of attention have a table like it,
kernels/choice.py.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from vit_jax.core.axes import pin_activation_layout, target


class Faster(NamedTuple):
    """A form for one platform."""

    # Takes the plain function, gives the one to call.
    program: Callable[[Callable[..., Any]], Callable[..., Any]]
    row: str  # where its gain stands
    test: str  # that it gives the plain one's numbers


def replacing(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    """The function for the devices that are traced for: of TABLE, or the plain one."""
    return TABLE.get((name, target().platform), _PLAIN).program(plain)


_PLAIN = Faster(lambda plain: plain, row="", test="")


def _add_behind_barrier(plain: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """cuBLASLt's products add vectors; XLA would have them add matrices, made as large as y."""

    def add(y: jax.Array, bias: jax.Array) -> jax.Array:
        return plain(y if bias.ndim == 1 else jax.lax.optimization_barrier(y), bias)

    return add


def _pin_layout(plain: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """XLA would lay tokens out with B contiguous, and copy them around each block's products."""
    return lambda x, *names: pin_activation_layout(plain(x, *names), *names)


def _sum_by_product(plain: Any) -> Callable[[jax.Array, int], jax.Array]:
    """Sums by a product: a TPU's vector units take ten times as long.

    With one row XLA would make a reduction of it again; a tile has 8.
    """

    def sum_of_rows(x: jax.Array, kept: int) -> jax.Array:
        over = tuple(range(x.ndim - kept))
        ones = jnp.ones((8, *x.shape[: x.ndim - kept]), x.dtype)
        axes = (tuple(1 + axis for axis in over), over)
        exact = "highest" if x.dtype == jnp.float32 else None
        return jax.lax.dot_general(
            ones, x, (axes, ((), ())), precision=exact, preferred_element_type=jnp.float32
        )[0]

    return sum_of_rows


def _convert_inside(plain: Any) -> Callable[..., Any]:
    from vit_jax.models.layers.kernels import scanned

    return scanned.converted_inside


ON_GPU = "docs/benchmarks.md#the-step-on-a-gpu"  # run on an H200
BY_COMPILER = "docs/benchmarks.md#the-step-on-a-tpu-by-its-compiler"  # run on no TPU
LAYERS = "tests/models/layers"
# (what is computed, platform) -> its form there.
TABLE: dict[tuple[str, str], Faster] = {
    # The backward pass keeps an activation's input alone: memory takes longer than computing.
    ("activation", "gpu"): Faster(jax.checkpoint, ON_GPU, f"{LAYERS}/block_test.py"),
    ("bias", "gpu"): Faster(_add_behind_barrier, ON_GPU, f"{LAYERS}/linear_test.py"),
    ("stream", "gpu"): Faster(_pin_layout, ON_GPU, "tests/core/axes_test.py"),
    ("sum_of_rows", "tpu"): Faster(_sum_by_product, BY_COMPILER, f"{LAYERS}/linear_test.py"),
    ("scanned_parameters", "tpu"): Faster(_convert_inside, BY_COMPILER, f"{LAYERS}/stack_test.py"),
}
