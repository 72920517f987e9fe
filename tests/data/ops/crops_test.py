"""The distribution of random windows, against an independent sampler."""

import math

import numpy as np
import pytest
from PIL import Image

from vit_jax.data.host_tf import tf
from vit_jax.data.ops import crops
from vit_jax.data.reader import Encoded

NUM_WINDOWS = 4000
# Kolmogorov-Smirnov distance of two samples of this size, exceeded with probability 1e-4.
LARGEST_DISTANCE = math.sqrt(-math.log(1e-4 / 2) / NUM_WINDOWS)
# Pillow rounds to 8 bits after each axis, TensorFlow once.
PILLOW_LEVELS = 1
# Pillow also clips to 0..255 in between, where bicubic weights overshoot.
PILLOW_BICUBIC_LEVELS = 2

# Height, width and smallest area. In the last, no window fits: the largest central one is taken.
CASES = ((375, 500, 0.08), (500, 375, 0.08), (224, 224, 0.05), (100, 300, 0.08), (300, 100, 0.9))


def features(windows, height, width):
    """Windows, int [n, 4] -> [n, 4]: area, log(width / height), and offsets of the centre from the
    image's along height and width; areas and offsets relative to the image."""
    top, left, window_height, window_width = windows.T.astype(float)
    return np.stack(
        [
            window_height * window_width / (height * width),
            np.log(window_width / window_height),
            np.abs((top + window_height / 2) / height - 0.5),
            np.abs((left + window_width / 2) / width - 0.5),
        ],
        axis=1,
    )


def drawn(height, width, area_min):
    """Windows drawn by this project, [NUM_WINDOWS, 4]."""

    @tf.function
    def all_windows():
        return tf.map_fn(
            lambda seed: crops.resized_crop_window(
                tf.constant([height, width]), tf.stack([seed, 0]), area_min, 1.0
            ),
            tf.range(NUM_WINDOWS, dtype=tf.int64),
            fn_output_signature=tf.int32,
        )

    return all_windows().numpy()


def as_described(height, width, area_min):
    """Windows drawn as torchvision's documentation and Going Deeper with Convolutions describe."""
    rng = np.random.default_rng(0)
    windows = []
    for _ in range(NUM_WINDOWS):
        for _ in range(10):
            area = height * width * rng.uniform(area_min, 1)
            ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
            h, w = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
            if h <= height and w <= width:
                windows.append((rng.integers(height - h + 1), rng.integers(width - w + 1), h, w))
                break
        else:
            h = min(height, round(width * 4 / 3))
            w = min(width, round(height * 4 / 3))
            windows.append(((height - h) // 2, (width - w) // 2, h, w))
    return np.array(windows)


def distance(a, b):
    """Kolmogorov-Smirnov distance: the largest difference of the two distribution functions."""
    at = np.unique(np.concatenate([a, b]))
    below = [np.searchsorted(np.sort(x), at, side="right") / len(x) for x in (a, b)]
    return float(np.abs(below[0] - below[1]).max())


@pytest.mark.parametrize(("height", "width", "area_min"), CASES)
def test_resized_crop_is_distributed_as_described(height, width, area_min):
    ours = drawn(height, width, area_min)
    assert (ours[:, :2] >= 0).all() and (ours[:, 2:] >= 1).all()
    assert (ours[:, :2] + ours[:, 2:] <= (height, width)).all()
    theirs = as_described(height, width, area_min)
    pairs = zip(
        features(ours, height, width).T.round(9),
        features(theirs, height, width).T.round(9),
        strict=True,
    )
    for name, pair in zip(("area", "aspect", "y", "x"), pairs, strict=True):
        assert distance(*pair) < LARGEST_DISTANCE, name


def of_window(method, seed, pixels):
    op = crops.random_resized_crop(24, method=method)
    return op.apply(tf.constant(pixels), tf.constant([seed, 0], tf.int64)).numpy().astype(int)


def by_pillow(method, seed, pixels):
    size = tf.constant(pixels.shape[:2])
    window = crops.resized_crop_window(size, tf.constant([seed, 0], tf.int64), 0.08, 1.0)
    top, left, height, width = window.numpy()
    part = Image.fromarray(pixels[top : top + height, left : left + width])
    return np.asarray(part.resize((24, 24), method)).astype(int)


def test_resized_crop_interpolates_as_pillow_does(photo_like):
    pixels = photo_like(97, 130)
    num_bicubic = 0
    for seed in range(40):
        bilinear = by_pillow(Image.Resampling.BILINEAR, seed, pixels)
        bicubic = by_pillow(Image.Resampling.BICUBIC, seed, pixels)
        assert np.abs(of_window("bilinear", seed, pixels) - bilinear).max() <= PILLOW_LEVELS
        cropped = of_window("bicubic", seed, pixels)
        assert np.abs(cropped - bicubic).max() <= PILLOW_BICUBIC_LEVELS
        either = of_window("random", seed, pixels)
        is_bicubic = (either == cropped).all()
        assert is_bicubic or (either == of_window("bilinear", seed, pixels)).all()
        num_bicubic += is_bicubic
    assert 8 <= num_bicubic <= 32  # four standard deviations


def test_resized_crop_decodes_only_its_window(photo_like, encode):
    pixels = photo_like(120, 90)
    image = Encoded(tf.constant(encode(pixels)), tf.constant([120, 90]), tf.constant(1))
    op = crops.random_resized_crop(24)
    assert op.decode is not None
    for seed in range(3):
        at = tf.constant([seed, 0], tf.int64)
        np.testing.assert_array_equal(op.decode(image, at), op.apply(tf.constant(pixels), at))
