"""A checksum per array, computed on its devices without gathering; the same for any sharding.

An element's bits are a 32-bit word w (narrower types are zero-extended, 64-bit types have two
words) and its row-major index is i, modulo 2**32. Each of the two checksum words is

    sum over i of  mix(w ^ mix(i + seed))   modulo 2**32,

with `mix` the finalizer of MurmurHash3, a bijection of 32-bit words, and a different seed for each
word. Sums of integers modulo 2**32 do not depend on order, so the checksum does not depend on
devices or mesh. Since `mix` is a bijection, a change of a single word is always detected, and by
the index so are swapped elements; other damage goes undetected with probability about 2**-64.
"""

from collections.abc import Mapping
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

Array = TypeVar("Array", np.ndarray, jax.Array)

SEEDS = (0x9E3779B9, 0x85EBCA77)  # arbitrary odd constants; part of the checkpoint's format
UINT_OF_BYTES = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint32}
# On the host, a smaller array takes less time than compiling a program for its shape.
SMALL_BYTES = 2**20


def checksums(arrays: Mapping[str, jax.Array]) -> dict[str, str]:
    """Arrays by name -> 16 hexadecimal digits by name. Waits for the arrays, moves only small ones.

    On several hosts every process must call it with the same names in the same order.
    """
    # One at a time: on CPUs, simulated devices share so few threads that several computations
    # deadlock, each with some of its devices waiting in an all-reduce.
    words = {name: _words_of(x) for name, x in arrays.items()}
    return {name: f"{a:08x}{b:08x}" for name, (a, b) in words.items()}


def _words_of(x: jax.Array) -> tuple[np.ndarray, np.ndarray]:
    is_here = x.is_fully_addressable or x.is_fully_replicated
    if is_here and x.nbytes < SMALL_BYTES:
        return _words_on_host(np.asarray(x))
    return jax.device_get(_words(x))


def _words_on_host(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What `_words` returns."""
    uint = np.dtype(UINT_OF_BYTES[min(x.dtype.itemsize, 4)])
    bits = np.ascontiguousarray(x).reshape(-1).view(uint).astype(np.uint32)
    index = np.arange(bits.size, dtype=np.uint32)
    of_seed = lambda seed: _mix(bits ^ _mix(index + np.uint32(seed))).sum(dtype=np.uint32)
    return of_seed(SEEDS[0]), of_seed(SEEDS[1])


@jax.jit
def _words(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """[...] of any dtype -> the two words of its checksum, uint32 scalars."""
    bits = _bits(x)
    index = _row_major_index(bits.shape)
    terms = tuple(_mix(bits ^ _mix(index + jnp.uint32(seed))) for seed in SEEDS)
    # One reduction of pairs, not two sums: ten times as fast on CPUs, half the compile time.
    zero = jnp.uint32(0)
    add_pairs = lambda left, right: (left[0] + right[0], left[1] + right[1])
    return jax.lax.reduce(terms, (zero, zero), add_pairs, tuple(range(bits.ndim)))


def _bits(x: jax.Array) -> jax.Array:
    """The elements' bits as uint32, [...] -> [...], or [..., 2] for 64-bit types."""
    if x.dtype == jnp.bool_:
        return x.astype(jnp.uint32)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        x = jnp.stack([x.real, x.imag], axis=-1)
    return jax.lax.bitcast_convert_type(x, UINT_OF_BYTES[x.dtype.itemsize]).astype(jnp.uint32)


def _row_major_index(shape: tuple[int, ...]) -> jax.Array:
    """Each element's index, uint32 of `shape`; built per axis, so that it is sharded like x."""
    index = jnp.zeros(shape, jnp.uint32)
    stride = 1
    for axis in reversed(range(len(shape))):
        place = jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
        index = index + place * jnp.uint32(stride % 2**32)
        stride *= shape[axis]
    return index


def _mix(word: Array) -> Array:
    """fmix32 of MurmurHash3 (A. Appleby, public domain): a bijection that spreads every bit."""
    word = (word ^ (word >> 16)) * np.uint32(0x85EBCA6B)
    word = (word ^ (word >> 13)) * np.uint32(0xC2B2AE35)
    return word ^ (word >> 16)
