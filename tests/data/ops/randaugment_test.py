from collections import Counter

import numpy as np
import pytest

from vit_jax.data.host_tf import tf
from vit_jax.data.ops import autoaugment

# One of 16 ops in 1600 draws: 100 expected each, standard deviation 9.7.
DRAWS = 1600
FEWEST, MOST = 61, 139


def run(op, pixels, seed):
    return op.apply(tf.constant(pixels), tf.constant([seed, 0], tf.int64)).numpy()


@pytest.fixture
def pixels():
    return np.random.default_rng(0).integers(0, 256, (48, 64, 3), np.uint8)


def test_chooses_all_sixteen_equally_often(drawn):
    recorded = drawn(autoaugment.randaugment(2, 10), DRAWS // 2)
    for half in (recorded[::2], recorded[1::2]):  # the first and the second op of each image
        assert len({name for name, _, _ in half}) == 16
    counts = Counter(name for name, _, _ in recorded)
    assert min(counts.values()) > FEWEST and max(counts.values()) < MOST
    # The two ops of an image are independent.
    same = sum(a[0] == b[0] for a, b in zip(recorded[::2], recorded[1::2], strict=True))
    assert 20 < same < 80  # 50 expected, standard deviation 6.8
    chances = np.array([chance for _, _, chance in recorded])
    assert np.abs(chances.mean(axis=0) - 0.5).max() < 0.04  # four standard deviations
    assert chances.min() >= 0 and chances.max() < 1


@pytest.mark.parametrize("magnitude", [0, 2.5, 15, 30])
def test_gives_each_the_argument_of_the_magnitude(drawn, magnitude):
    draws = drawn(autoaugment.randaugment(4, magnitude), 40)
    assert {name for name, _, _ in draws} == set(autoaugment.CHOICES)
    for name, argument, _ in draws:
        expected = autoaugment.DISTORTIONS[name].argument(magnitude)
        assert argument == pytest.approx(expected)


@pytest.mark.parametrize(
    ("magnitude", "threshold", "bits"),
    [(0, 0, 1), (9, 230, 3), (10, 0, 4), (15, 128, 6), (20, 0, 8), (22, 51, 8), (25, 128, 1)],
)
def test_legacy_is_what_the_published_code_made_of_it(pixels, magnitude, threshold, bits):
    """Thresholds and shifts wrap as in NumPy 1's 8 bits; contrast is about num_pixels / 256."""

    def distorted(name):
        distortion = autoaugment.DISTORTIONS[f"{name} as published"]
        argument = distortion.argument(magnitude)
        return distortion.apply(tf.constant(pixels), tf.constant(argument), tf.zeros([3])).numpy()

    solarized = np.where(pixels < threshold, pixels, 255 - pixels)
    np.testing.assert_array_equal(distorted("Solarize"), solarized)
    np.testing.assert_array_equal(distorted("Posterize"), pixels >> (8 - bits) << (8 - bits))
    gray, factor = np.float32(48 * 64 // 256), np.float32(magnitude / 10 * 1.8 + 0.1)
    blended = gray + factor * (pixels.astype(np.float32) - gray)
    np.testing.assert_array_equal(distorted("Contrast"), blended.clip(0, 255).astype(np.uint8))


def test_legacy_changes_five(drawn):
    names = []
    for legacy in (False, True):
        draws = drawn(autoaugment.randaugment(2, 10, legacy=legacy), 200)
        names.append([name for name, _, _ in draws])
    changed = {pair for pair in zip(*names, strict=True) if pair[0] != pair[1]}
    assert changed == {
        (name, f"{name} as published")
        for name in ("Color", "Contrast", "Posterize", "Sharpness", "Solarize")
    }


def test_is_the_same_in_a_graph_of_unknown_sizes(pixels):
    """Runs as in tf.data, with any number of threads."""
    op = autoaugment.randaugment(2, 15)
    seeds = np.stack([np.arange(30), np.zeros(30)], axis=1).astype(np.int64)
    spec = tf.TensorSpec([None, None, 3], tf.uint8)
    graph = tf.function(op.apply, input_signature=[spec, tf.TensorSpec([2], tf.int64)])

    def results(threads):
        images = tf.data.Dataset.from_generator(lambda: 30 * [pixels], output_signature=spec)
        both = tf.data.Dataset.zip((images, tf.data.Dataset.from_tensor_slices(seeds)))
        return list(both.map(graph, num_parallel_calls=threads).as_numpy_iterator())

    expected = [run(op, pixels, seed) for seed in range(30)]
    for threads in (1, 4):
        for actual, one in zip(results(threads), expected, strict=True):
            np.testing.assert_array_equal(actual, one)
