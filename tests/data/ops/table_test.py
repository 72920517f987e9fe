import numpy as np
import pytest
from PIL import Image

from tests.messages import refused
from vit_jax.data.host_tf import tf
from vit_jax.data.ops import crops, decode
from vit_jax.data.ops import table as ops
from vit_jax.data.reader import Encoded, encoded
from vit_jax.data.source import Example

# Pillow rounds to 8 bits after each axis, TensorFlow once.
PILLOW_LEVELS = 1
PILLOW_MEAN_LEVELS = 0.25
# Rounding to uint8 costs at most half a level, and a quarter on average.
ROUNDING_MEAN_LEVELS = 0.3
# When a window is cut from a JPEG, chroma at its rim is interpolated without its surroundings.
WINDOW_LEVELS = 8
WINDOW_MEAN_LEVELS = 0.1


def run(preprocess, data, seed=0, max_image_pixels=10**9):
    image = encoded(Example(data, (0,)), max_image_pixels)
    assert isinstance(image, Encoded), image
    image = Encoded(tf.constant(image.data), tf.constant(image.size), tf.constant(1))
    seeds = tf.constant([seed, 0], tf.int64)
    return ops.parse(preprocess)(image, seeds, max_image_pixels=max_image_pixels).numpy()


@pytest.fixture
def pixels(photo_like):
    return photo_like(120, 90)


@pytest.fixture
def png(pixels, encode):
    return encode(pixels)


@pytest.mark.parametrize(
    ("op", "height", "width"),
    [
        ("resize((32, 48))", 32, 48),
        ("resize(64)", 64, 64),
        ("resize((200, 150))", 200, 150),
        ("resize_small(31)", 41, 31),  # 120 * 31 / 90 = 41.3
    ],
)
def test_resize_equals_pillow(pixels, png, op, height, width):
    actual = run(f"decode|{op}", png).astype(int)
    resized = Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR)
    difference = np.abs(actual - np.asarray(resized).astype(int))
    assert difference.max() <= PILLOW_LEVELS
    assert difference.mean() <= PILLOW_MEAN_LEVELS


def test_white_level(encode):
    gray = np.array([[0, 1, 2], [3, 4, 255]], np.uint8)
    white = run("decode|white_level(1)", encode(gray))
    np.testing.assert_array_equal(white, np.dstack([np.where(gray > 0, 255, 0)] * 3))
    thirds = run("decode|white_level(3)", encode(gray))[..., 0]
    assert thirds.tolist() == [[0, 85, 170], [255, 255, 255]]


def test_central_crop(pixels, png):
    np.testing.assert_array_equal(run("decode|central_crop(50)", png), pixels[35:85, 20:70])
    np.testing.assert_array_equal(run("decode|central_crop((9, 4))", png), pixels[55:64, 43:47])


def test_flip_lr(pixels, png):
    results = [run("decode|flip_lr", png, seed) for seed in range(100)]
    flipped = [np.array_equal(result, pixels[:, ::-1]) for result in results]
    unchanged = [np.array_equal(result, pixels) for result in results]
    assert all(f != u for f, u in zip(flipped, unchanged, strict=True))
    assert 30 <= sum(flipped) <= 70  # four standard deviations


def test_pad_crop_takes_every_window(encode):
    pixels = np.arange(1, 5 * 6 * 3 + 1, dtype=np.uint8).reshape(5, 6, 3)
    padded = np.pad(pixels, [(1, 1), (1, 1), (0, 0)])
    windows = {
        padded[top : top + 5, left : left + 6].tobytes() for top in range(3) for left in range(3)
    }
    data = encode(pixels)
    assert {run("decode|pad_crop((5, 6), 1)", data, s).tobytes() for s in range(100)} == windows


def test_pad_crop_reflects(pixels, png):
    padded = np.pad(pixels, [(4, 4), (4, 4), (0, 0)], mode="reflect")
    np.testing.assert_array_equal(run("decode|pad_crop((128, 98), 4, reflect=True)", png), padded)


def test_inception_crop_of_the_whole_image_is_a_resize(png, pixels):
    actual = run("decode|inception_crop((60, 45), area_min=1.0)", png)
    # Halving without a filter averages 2 x 2 pixels.
    expected = pixels.reshape(60, 2, 45, 2, 3).mean(axis=(1, 3))
    assert np.abs(actual - expected).mean() < ROUNDING_MEAN_LEVELS + 1  # the window may be smaller


def test_inception_crop_draws_areas_and_aspects_as_stated(encode):
    """Red encodes the row and green the column, so that a result's corners reveal its window."""
    rows, columns = np.mgrid[0:200, 0:200]
    pixels = np.stack([rows, columns, rows * 0], axis=-1).astype(np.uint8)
    data = encode(pixels)
    areas, aspects = [], []
    for seed in range(200):
        crop = run("decode|inception_crop(64, 0.25, 0.75)", data, seed).astype(float)
        height = (crop[-1, 0, 0] - crop[0, 0, 0]) * 64 / 63
        width = (crop[0, -1, 1] - crop[0, 0, 1]) * 64 / 63
        areas.append(height * width / 200**2)
        aspects.append(width / height)
    rounding = 0.03
    assert 0.25 - rounding < min(areas) < 0.3 and 0.7 < max(areas) < 0.75 + rounding
    assert 3 / 4 - rounding < min(aspects) < 0.8 and 1.25 < max(aspects) < 4 / 3 + rounding
    assert np.mean(areas) == pytest.approx(0.5, abs=0.04)


def test_only_the_window_is_decoded_and_equals_the_whole_decoded(photo_like, encode):
    data = encode(photo_like(300, 200), "JPEG", quality=90)
    for seed in range(10):
        window = run("decode|inception_crop(96)", data, seed).astype(int)
        # An op in between forces decoding the whole image first, which shifts the crop's seed.
        image = encoded(Example(data, (0,)), 10**9)
        assert isinstance(image, Encoded)
        whole = decode.decode().decode(Encoded(image.data, image.size, tf.constant(1)), None)
        crop = crops.inception_crop(96).apply(whole, tf.constant([seed, 1], tf.int64)).numpy()
        difference = np.abs(window - crop)
        assert difference.max() <= WINDOW_LEVELS
        assert difference.mean() <= WINDOW_MEAN_LEVELS


def test_random_ops_depend_on_the_seed_and_their_place(png):
    once = run("decode|inception_crop(32)|flip_lr", png, seed=1)
    np.testing.assert_array_equal(once, run("decode|inception_crop(32)|flip_lr", png, seed=1))
    assert (once != run("decode|inception_crop(32)|flip_lr", png, seed=2)).any()
    two = run("decode|pad_crop(60, 8)|pad_crop(60, 8)", png)
    shifted = run("decode|pad_crop(60, 16)", png)
    assert (two != shifted).any()


@pytest.mark.parametrize(
    ("preprocess", "size"),
    [
        ("decode|inception_crop(224)|flip_lr", (224, 224)),
        ("decode|random_resized_crop(192, method='bicubic')|flip_lr", (192, 192)),
        ("decode|resize((3, 5))", (3, 5)),
        ("decode|resize_small(256)|central_crop(224)", (224, 224)),
        ("decode|resize((10, 20))|resize_small(5)", (5, 10)),
        ("decode|resize_small(4)|central_crop((8, 4))", (8, 4)),  # some images contain it
        ("decode|resize_small(4)|resize_small(8)|central_crop(8)", (8, 8)),
        ("decode|resize(24)|pad_crop(32, 4)", (32, 32)),
        ("decode|crop_border(2)|resize_small(9)|central_crop((9, 8))", (9, 8)),
        ("decode|resize((9, 8))|crop_border(2)", (5, 4)),
        (" decode | pad_crop(size=32, padding=4) ", (32, 32)),
        ("decode", None),
        ("decode|resize_small(256)|flip_lr", None),
        ("decode|inception_crop(96)|randaugment(2, 10)|random_erasing(0.25)", (96, 96)),
        ("decode|resize_small(96)|three_augment|color_jitter(0.3)|central_crop(96)", (96, 96)),
        ("decode|autoaugment('v0')", None),
    ],
)
def test_output_size_is_known_in_advance(preprocess, size):
    assert ops.parse(preprocess).output_size == size


@pytest.mark.parametrize(
    "ops_of_it",
    [
        "inception_crp(224)", "__import__('os')", "decode|resize(2)", "|flip_lr", "white_level(0)",
        "resize", "resize(0)", "resize(1.5)", "resize(sz=8)", "resize(8, size=9)",
        "resize(__import__('os'))", "resize(*[1])", "resize(2)|central_crop(8)",
        "resize_small(4)|central_crop(8)", "resize(16)|pad_crop(32, 4)", "resize(4)|crop_border(2)",
        "inception_crop(224, area_min='a')", "inception_crop(224, area_min=0)",
        "inception_crop(224, reduced=0)", "random_resized_crop(8, method='cubic')",
        "randaugment(2, 31)", "randaugment(2, nan)", "randaugment(2, True)", "randaugment(0, 10)",
        "autoaugment('imagnet')", "color_jitter(hue=0.6)", "grayscale(1.1)",
        "gaussian_blur(0.5, 2, 1)", "three_augment(1)", "random_erasing(1, 0.5, 0.4)",
        "resize(8, method='bicubc')", "resize_small(8, method=3)", "resize(8, antialias=1)",
        "resize(8, levels='dwn')", "resize(8, levels=None)", "central_crop(8, fill=(1, 2, 256))",
        "pad_crop(8, 1, reflect=1)", "random_erasing(1, fill=(1, 2))", "flip_lr(1)",
    ],
)  # fmt: skip
def test_wrong_strings_are_refused(ops_of_it):
    with refused("evals.test.preprocess"):
        ops.parse(f"decode|{ops_of_it}", field="evals.test.preprocess")


def test_strings_begin_with_decode():
    for preprocess in ("", "resize(2)", "resize(224)", "decode||"):
        with refused("preprocess"):
            ops.parse(preprocess)


@pytest.mark.parametrize(
    ("op", "word"),
    [("central_crop(91)", "crop"), ("pad_crop(100, 2)", "crop"), ("crop_border(45)", "border")],
)
def test_a_crop_larger_than_the_image_fails(png, op, word):
    with pytest.raises(tf.errors.InvalidArgumentError, match=word):
        run(f"decode|{op}", png)


@pytest.mark.parametrize(
    ("op", "shape"),
    [
        ("resize_small(200)", (1, 200)),  # would be 200 x 40,000
        ("resize_small(200)", (200, 1)),
        ("resize((200, 8))", (1, 600)),  # 200 x 600 in between: rows are resized first
        ("pad_crop(8, 150)", (8, 200)),
    ],
)
def test_ops_hold_the_pixel_limit(encode, op, shape):
    data = encode(np.zeros(shape, np.uint8))
    run(f"decode|{op}", data, max_image_pixels=200**3)
    with pytest.raises(tf.errors.InvalidArgumentError, match="max_image_pixels=30000"):
        run(f"decode|{op}", data, max_image_pixels=30_000)


@pytest.mark.parametrize("size", [256, 2**20])
def test_a_thin_image_allocates_nothing(encode, size):
    """256 x 7,680,000 pixels would be 23 GB, and 2**31 of them overflow 32 bits."""
    with pytest.raises(tf.errors.InvalidArgumentError, match="max_image_pixels"):
        run(f"decode|resize_small({size})", encode(np.zeros((1, 30_000), np.uint8)))
