"""Which images get pseudo-labels: filter, balance, copies, ties."""

import numpy as np
import pytest

from vit_jax.evaluate.selection import choose

# Of six images the classes and how sure; the last but one is not sure enough.
CLASSES = np.array([2, 0, 2, 2, 0, 2])
SURE = np.array([0.5, 0.9, 0.8, 0.5, 0.29, 0.5], np.float32)


@pytest.mark.parametrize(
    ("per_class", "expected"),
    [
        (None, [1, 1, 1, 1, 0, 1]),
        (1, [0, 1, 1, 0, 0, 0]),
        (2, [1, 2, 1, 0, 0, 0]),  # of three that are equally sure the first
        (3, [1, 3, 1, 1, 0, 0]),
        (4, [1, 4, 1, 1, 0, 1]),
        (7, [2, 7, 2, 2, 0, 1]),  # 7 = 4 + 3: the three surest are there twice
    ],
)
def test_the_surest_of_each_class_or_copies_of_all(per_class, expected):
    copies = choose(CLASSES, SURE, at_least=0.3, per_class=per_class, num_classes=4)
    assert copies.tolist() == expected
    assert copies.dtype == np.int32


def test_each_class_that_has_images_gets_its_number_as_by_hand():
    rng = np.random.default_rng(0)
    classes = rng.choice(5, 1000, p=[0.6, 0.3, 0.08, 0.02, 0])
    sure = rng.integers(0, 50, 1000).astype(np.float32) / 50  # many are equal
    copies = choose(classes, sure, at_least=0.4, per_class=100, num_classes=5)
    for c in range(5):
        of_class = [i for i in range(1000) if classes[i] == c and sure[i] >= np.float32(0.4)]
        of_class.sort(key=lambda i: (-sure[i], i))
        expected = np.zeros(1000, int)
        for turn in range(100 if of_class else 0):
            expected[of_class[turn % len(of_class)]] += 1
        np.testing.assert_array_equal(np.where(classes == c, copies, 0), expected)


@pytest.mark.parametrize(("at_least", "kept"), [(0.0, 6), (0.5, 5), (0.9, 1), (1.0, 0)])
def test_as_sure_as_the_threshold_is_sure_enough(at_least, kept):
    copies = choose(CLASSES, SURE, at_least=at_least, per_class=None, num_classes=4)
    assert copies.sum() == kept
