"""The random numbers of tf.random.stateless_uniform on a CPU, bit for bit, in JAX.

Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3 (2011): Philox 4x32 of 10 rounds. A seed
is the int64 [2] of TensorFlow as uint32 [4], the low word of each number first.
"""

import jax
import jax.numpy as jnp
import numpy as np

# Constants of section 4.3: multipliers, and increments of the key.
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_INCREMENTS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
# The key that TensorFlow scrambles seeds with (core/kernels/stateless_random_ops.cc).
_OF_SEEDS = (0x3EC8F720, 0x02461E29)

_Words = tuple[jax.Array, ...]


def words(seeds: np.ndarray) -> np.ndarray:
    """int64 [n, 2] -> uint32 [n, 4]."""
    return np.ascontiguousarray(seeds, "<i8").view("<u4")


def later(seed: jax.Array, place: int) -> jax.Array:
    """The seed + (0, place), for a second number whose low byte is 0, and a place below 256."""
    return jnp.asarray(seed).at[2].add(jnp.uint32(place))


def uniform(seed: jax.Array, number: int) -> jax.Array:
    """Float32 [number] in [0, 1)."""
    return _floats(bits(seed, number))


def bits(seed: jax.Array, number: int) -> jax.Array:
    """Random bits, uint32 [number]."""
    return bits_at(seed, jnp.arange(number))


def bits_at(seed: jax.Array, places: jax.Array) -> jax.Array:
    """The random bits at these places of the seed's sequence: uint32, shaped as `places`."""
    seed_words = tuple(seed[i] for i in range(4))
    k0, k1, c2, c3 = _philox(seed_words, tuple(jnp.uint32(k) for k in _OF_SEEDS))
    blocks, inside = jnp.divmod(places.astype(jnp.uint32), jnp.uint32(4))
    zero = jnp.zeros_like(blocks)
    four = _philox((blocks, zero, zero + c2, zero + c3), (k0, k1))
    return jnp.select([inside == i for i in range(4)], four)


def _floats(random_bits: jax.Array) -> jax.Array:
    """The 23 low bits as the fraction of a number in [1, 2), less 1."""
    one = jnp.uint32(127 << 23)
    numbers = jax.lax.bitcast_convert_type((random_bits & 0x7FFFFF) | one, jnp.float32)
    return numbers - 1


def _philox(counter: _Words, key: _Words) -> _Words:
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for number in range(_ROUNDS):
        if number:
            k0, k1 = k0 + jnp.uint32(_INCREMENTS[0]), k1 + jnp.uint32(_INCREMENTS[1])
        high_0, low_0 = _product(_MULTIPLIERS[0], c0)
        high_1, low_1 = _product(_MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = high_1 ^ c1 ^ k0, low_1, high_0 ^ c3 ^ k1, low_0
    return c0, c1, c2, c3


def _product(constant: int, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The high and the low 32 bits of a product, from 16 bits each: there are no 64."""
    half = jnp.uint32(0xFFFF)
    high, low = jnp.uint32(constant >> 16), jnp.uint32(constant & 0xFFFF)
    x_high, x_low = x >> 16, x & half
    carried = high * x_low + ((low * x_low) >> 16)
    across = low * x_high + (carried & half)
    return high * x_high + (carried >> 16) + (across >> 16), jnp.uint32(constant) * x
