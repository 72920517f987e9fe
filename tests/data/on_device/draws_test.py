import numpy as np

from vit_jax.data.host_tf import tf
from vit_jax.data.on_device import draws

SEEDS = np.array(
    [[0, 0], [1, 2], [-1, 2**62], [2**33 + 5, 1437 * 256 + 3], [-(2**63), 2**63 - 1]], np.int64
)


def test_numbers_are_those_of_tensorflow():
    for number in (0, 1, 2, 4, 9):
        ours = draws.uniform(SEEDS, number)
        assert (ours.shape, ours.dtype) == ((len(SEEDS), number), np.float32)
        for seed, numbers in zip(SEEDS, ours, strict=True):
            np.testing.assert_array_equal(numbers, tf.random.stateless_uniform([number], seed))


def test_bits_are_those_of_tensorflow():
    ours = draws.bits(SEEDS, 11)
    for seed, words in zip(SEEDS, ours, strict=True):
        theirs = tf.random.stateless_uniform([11], seed, None, None, tf.uint32)
        np.testing.assert_array_equal(words, theirs)
