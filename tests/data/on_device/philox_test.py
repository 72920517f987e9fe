import jax
import numpy as np

from vit_jax.data.host_tf import tf
from vit_jax.data.on_device import philox

SEEDS = np.array(
    [[0, 0], [1, 2], [-1, 2**62], [2**33 + 5, 1437 * 256 + 3], [-(2**63), 2**63 - 1]], np.int64
)


def test_numbers_are_those_of_tensorflow():
    ours = jax.jit(jax.vmap(lambda seed: philox.uniform(seed, 9)))(philox.words(SEEDS))
    for seed, numbers in zip(SEEDS, np.asarray(ours), strict=True):
        np.testing.assert_array_equal(numbers, tf.random.stateless_uniform([9], seed))


def test_bits_are_those_of_tensorflow():
    for seed, words in zip(SEEDS, philox.words(SEEDS), strict=True):
        theirs = tf.random.stateless_uniform([11], seed, None, None, tf.uint32)
        np.testing.assert_array_equal(philox.bits(words, 11), theirs)
        np.testing.assert_array_equal(
            philox.bits_at(words, np.array([10, 3])), np.asarray(theirs)[[10, 3]]
        )


def test_a_later_seed_is_the_sum():
    seed = np.array([[7, 5 * 256]], np.int64)
    after = philox.words(seed + np.array([0, 200]))
    np.testing.assert_array_equal(philox.later(philox.words(seed)[0], 200), after[0])
