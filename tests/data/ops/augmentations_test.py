import numpy as np
import pytest

from vit_jax.data.host_tf import tf
from vit_jax.data.ops import augmentations, autoaugment, effects

GRAY_LEVEL = 100
FEW, MANY = 60, 140  # in 300 draws with a third expected: five standard deviations
# The factor is inferred from one 8-bit gray level.
FACTOR_RESOLUTION = 0.011


def run(op, pixels, seed):
    return op.apply(tf.constant(pixels), tf.constant([seed, 0], tf.int64)).numpy()


@pytest.fixture
def pixels(photo_like):
    return photo_like(24, 18)


def test_brightness_has_the_stated_factors():
    pixels = np.full((1, 1, 3), GRAY_LEVEL, np.uint8)
    op = augmentations.color_jitter(brightness=0.5)
    factors = [run(op, pixels, seed).mean() / GRAY_LEVEL for seed in range(300)]
    assert 0.5 - FACTOR_RESOLUTION <= min(factors) < 0.52
    assert 1.48 < max(factors) <= 1.5
    assert np.mean(factors) == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize(
    ("arguments", "change"),
    [
        ({"contrast": 0.4}, effects.contrast),
        ({"saturation": 0.4}, effects.saturation),
        ({"hue": 0.2}, effects.hue),
    ],
)
def test_each_argument_changes_what_it_names(arguments, change, pixels):
    low = -0.2 if "hue" in arguments else 0.6
    high = 0.2 if "hue" in arguments else 1.4
    candidates = [
        change(tf.constant(pixels), tf.constant(f, tf.float32)).numpy()
        for f in np.linspace(low, high, 161)
    ]
    for seed in range(5):
        jittered = run(augmentations.color_jitter(**arguments), pixels, seed)
        distances = [np.abs(c.astype(int) - jittered).max() for c in candidates]
        assert min(distances) <= 2  # in levels, from the nearest of 161 factors


@pytest.mark.parametrize(
    "create",
    [
        augmentations.grayscale,
        augmentations.solarize,
        lambda p: augmentations.gaussian_blur(p, 1.0),
        lambda p: augmentations.color_jitter(0.9, hue=0.5, probability=p),
    ],
    ids=["grayscale", "solarize", "gaussian_blur", "color_jitter"],
)
def test_happen_with_their_probability(create, pixels):
    def happened(probability):
        op = create(probability)
        return sum((run(op, pixels, seed) != pixels).any() for seed in range(100))

    assert happened(0.0) == 0
    assert 8 <= happened(0.25) <= 45  # four standard deviations
    assert happened(1.0) == 100


def test_solarize_by_its_threshold(pixels):
    solarized = run(augmentations.solarize(1.0, 77), pixels, 0)
    np.testing.assert_array_equal(solarized, np.where(pixels < 77, pixels, 255 - pixels))


def test_gaussian_blur_draws_sigma_from_its_range(pixels):
    op = augmentations.gaussian_blur(1.0, 1.5, 1.5)
    expected = effects.gaussian_blur(tf.constant(pixels), 1.5).numpy()
    np.testing.assert_array_equal(run(op, pixels, 0), expected)
    spot = np.zeros((31, 31, 3), np.uint8)
    spot[15, 15] = 255
    peaks = [run(augmentations.gaussian_blur(1.0, 0.5, 1.0), spot, s)[15, 15, 0] for s in range(60)]
    # 255 / (2 pi sigma^2) for sigma 1, and the discrete bell for sigma 0.5.
    assert 40 <= min(peaks) < 50 and 130 < max(peaks) <= 158


def test_three_augment_does_one_of_three_equally_often(pixels):
    constant = tf.constant(pixels)
    gray = effects.grayscale(constant).numpy()
    solarized = effects.solarize(constant, 128.0).numpy()
    op = augmentations.three_augment()
    results = [run(op, pixels, seed) for seed in range(300)]
    num_gray = sum(np.array_equal(result, gray) for result in results)
    num_solarized = sum(np.array_equal(result, solarized) for result in results)
    blurred = [r for r in results if not (np.array_equal(r, gray) or np.array_equal(r, solarized))]
    for count in (num_gray, num_solarized, len(blurred)):
        assert FEW < count < MANY
    most = effects.gaussian_blur(constant, 2.0).numpy().astype(int)
    largest = np.abs(most - pixels).max()
    assert all(np.abs(b.astype(int) - pixels).max() <= largest for b in blurred)


OPS = {
    "color_jitter": augmentations.color_jitter(0.4, 0.4, 0.4, 0.1),
    "grayscale": augmentations.grayscale(0.5),
    "solarize": augmentations.solarize(0.5),
    "gaussian_blur": augmentations.gaussian_blur(0.5),
    "three_augment": augmentations.three_augment(),
    **{f"autoaugment {name}": autoaugment.autoaugment(name) for name in autoaugment.POLICIES},
    **{f"randaugment {level}": autoaugment.randaugment(2, level) for level in (0, 15, 30)},
}


@pytest.mark.parametrize("size", [(1, 1), (7, 300), (2, 3), (32, 32)], ids=str)
@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_keep_the_size_and_are_functions_of_the_seed(op, size):
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    assert op.output_size(size) == size
    results = [run(op, pixels, seed) for seed in range(8)]
    for seed, result in enumerate(results):
        assert (result.shape, result.dtype) == (pixels.shape, np.uint8)
        np.testing.assert_array_equal(run(op, pixels, seed), result)
    assert size != (32, 32) or len({result.tobytes() for result in results}) > 1
