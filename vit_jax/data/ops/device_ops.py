"""Random ops on devices, and their random numbers, which the host draws as TensorFlow does."""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np

from vit_jax.data.ops.op import OnDevice


class DeviceOps(NamedTuple):
    """Random ops for devices, by their places in the string."""

    by_place: dict[int, OnDevice]

    @property
    def num_draws(self) -> int:
        """Numbers that all of them take for an image."""
        return sum(op.num_draws for op in self.by_place.values())

    def draw(self, seeds: np.ndarray) -> np.ndarray:
        """Their numbers, float32 [n, num_draws], for the seeds of images, int64 [n, 2]."""
        draws = [
            uniform_draws(seeds + np.array([0, place]), op.num_draws)
            for place, op in self.by_place.items()
        ]
        return np.concatenate([np.zeros([len(seeds), 0], np.float32), *draws], axis=1)

    def apply(self, pixels: jax.Array, draws: jax.Array) -> jax.Array:
        """One image, uint8 [H, W, 3], and its numbers, float32 [num_draws] -> uint8 [h, w, 3]."""
        for op in self.by_place.values():
            pixels = op.apply(pixels, draws[: op.num_draws])
            draws = draws[op.num_draws :]
        return pixels


# The random numbers of tf.random.stateless_uniform on a CPU, bit for bit, in NumPy. The host draws
# them, a few for an image: XLA would fuse the generator into what the numbers decide and run it for
# every pixel, which took 80 ms for 128 images of 32 x 32 on a CPU.
# Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3 (2011): Philox 4x32 of 10 rounds.


# Constants of section 4.3: multipliers, and increments of the key.
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_INCREMENTS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
# The key that TensorFlow scrambles seeds with (core/kernels/stateless_random_ops.cc).
_SEED_KEY = (0x3EC8F720, 0x02461E29)
_WORD, _BITS = np.uint64(0xFFFFFFFF), np.uint64(32)
_FRACTION = np.uint64(0x7FFFFF)  # the bits of a float32 behind its point
_ONE = np.uint32(127 << 23)  # the bits of 1.0

_Words = tuple[np.ndarray, ...]


def uniform_draws(seeds: np.ndarray, number: int) -> np.ndarray:
    """Float32 [n, number] in [0, 1) of seeds, int64 [n, 2]."""
    # The fraction of a number in [1, 2), less 1.
    fractions = (random_bits(seeds, number) & _FRACTION).astype(np.uint32)
    return (fractions | _ONE).view(np.float32) - np.float32(1)


def random_bits(seeds: np.ndarray, number: int) -> np.ndarray:
    """Random words of 32 bits, uint64 [n, number], of seeds, int64 [n, 2]."""
    columns = seeds.astype(np.uint64).T[:, :, None]
    seed_words = tuple(word for seed in columns for word in (seed & _WORD, seed >> _BITS))
    k0, k1, c2, c3 = _philox(seed_words, tuple(map(np.uint64, _SEED_KEY)))
    blocks = np.arange(-(-number // 4), dtype=np.uint64)
    four = _philox((blocks, np.zeros_like(blocks), c2, c3), (k0, k1))
    words = np.stack(np.broadcast_arrays(*four), axis=-1)
    return words.reshape(len(seeds), -1)[:, :number]


def _philox(counter: _Words, key: tuple[np.ndarray | np.uint64, ...]) -> _Words:
    c0, c1, c2, c3 = counter
    for number in range(_ROUNDS):
        k0, k1 = (
            (k + np.uint64(number * i)) & _WORD for k, i in zip(key, _INCREMENTS, strict=True)
        )
        first, second = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1 = (second >> _BITS) ^ c1 ^ k0, second & _WORD
        c2, c3 = (first >> _BITS) ^ c3 ^ k1, first & _WORD
    return c0, c1, c2, c3
