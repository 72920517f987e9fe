"""Random streams by name: every random number is a function of (seed, stream, step).

No random state is ever saved or carried along, so step k draws the same numbers in a run that was
killed ten times as in one that never was.
"""

import zlib

import jax


def stream(seed: int, name: str) -> jax.Array:
    """The key of one named stream ("params", "dropout", "mixing") of a run."""
    # A checksum, not hash(), which Python salts anew in every process.
    return jax.random.fold_in(jax.random.key(seed), zlib.crc32(name.encode()) & 0x7FFFFFFF)


def at_step(key: jax.Array, step: jax.Array | int) -> jax.Array:
    """The key of a stream at one step; `step` may be traced."""
    return jax.random.fold_in(key, step)
