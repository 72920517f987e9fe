"""TrivialAugment: what it draws, and strengths as torchvision has them."""

from collections import Counter

import numpy as np
import pytest

from vit_jax.data.host_tf import tf
from vit_jax.data.ops import autoaugment

DRAWS = 1400  # of each of 14 a hundred expected, standard deviation 9.6


def test_chooses_fourteen_equally_often_one_of_which_is_nothing(drawn):
    recorded = drawn(autoaugment.trivialaugment(), DRAWS)
    counts = Counter(name for name, _, _ in recorded)
    assert len(counts) == 14 and None in counts
    assert min(counts.values()) > 61 and max(counts.values()) < 139
    levels = {argument for name, argument, _ in recorded if name == "Rotate wide"}
    assert len(levels) > 20 and max(levels) <= 135


# The levels of torchvision's TrivialAugmentWide by its formulas, of 31 bins.
BINS = np.arange(31)
RANGES = {
    "ShearX": np.linspace(0, 0.99, 31), "TranslateY": np.linspace(0, 32, 31),
    "Rotate": np.linspace(0, 135, 31), "Color": np.linspace(0, 0.99, 31),
    "Posterize": 8 - np.round(BINS / (30 / 6)), "Solarize": np.linspace(255, 0, 31),
}  # fmt: skip


@pytest.mark.parametrize("name", RANGES)
def test_strengths_are_torchvisions(name):
    argument = autoaugment.DISTORTIONS[f"{name} wide"].argument
    found = [argument(level / 3) for level in BINS]
    np.testing.assert_allclose(found, RANGES[name], atol=1e-6)


def test_factors_go_both_ways():
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    brightness = autoaugment.DISTORTIONS["Brightness wide"].apply
    for sign, chance in ((-1, 0.2), (1, 0.8)):
        found = brightness(tf.constant(pixels), tf.constant(0.5), tf.fill([3], chance)).numpy()
        expected = np.clip(pixels * (1 + sign * 0.5), 0, 255)
        assert np.abs(found - expected).max() <= 1
