"""big_vision's preprocessing, op by op and pixel by pixel."""

import io
import json

import numpy as np
import pytest
from PIL import Image

from vit_jax.data.host_tf import tf
from vit_jax.data.ops import crops
from vit_jax.data.ops import table as ops
from vit_jax.data.ops.autoaugment import CHOICES, DISTORTIONS
from vit_jax.data.ops.crops import flip_lr
from vit_jax.data.ops.effects import affine
from vit_jax.data.ops.resizing import resize_small
from vit_jax.data.reader import Encoded, encoded
from vit_jax.data.source import Example
from vit_jax.learning.losses import Objective, Softmax

BOX = (3, 5, 20, 17)  # top, left, height and width of a random crop's window
# Their string, and ours that means the same.
OPS = {
    "decode": ("", ""),
    "resize": ("|resize(13)", '|resize(13, antialias=False, levels="down")'),
    "resize_both": ("|resize([60, 9])", '|resize((60, 9), antialias=False, levels="down")'),
    "resize_area": ('|resize(13, "area")', '|resize(13, "area", levels="down")'),
    "resize_filtered": ("|resize(13, antialias=True)", '|resize(13, levels="down")'),
    "evaluation": (
        "|resize_small(16)|central_crop(12)",
        '|resize_small(16, "area", levels="down")|central_crop(12)',
    ),
    "central_crop": ("|central_crop(11)", "|central_crop(11)"),
    "inception_crop": ("|inception_crop(14)", '|inception_crop(14, levels="down")'),
}
PRECISE = "decode(precise=True)"  # decoded as by Pillow, as here
# They, too, decode only the window of a JPEG.
CROP = ("decode_jpeg_and_inception_crop(14)", '|inception_crop(14, levels="down")')
# TensorFlow's default transform of a JPEG is less exact than Pillow's, used here.
FAST = {"decode": ("decode", ""), "crop": CROP}
FAST_LEVELS, FAST_MEAN_LEVELS = 8, 1.5
VALUE_ROUNDING = 2e-7  # float32 between -1 and 1

LEVELS = (1, 10, 15, 20)  # for RandAugment; the last three are those of recipes
CORNER = (20, 24)  # of the random image to be distorted
WINDOWS, DRAWN_FROM = 2000, (300, 400)
SHORTER_SIDES = (16, 224, 256)


def files():
    """A PNG and a JPEG: smooth colours with some noise."""
    rng = np.random.default_rng(0)
    smooth = Image.fromarray(rng.integers(0, 256, (5, 6, 3), np.uint8)).resize((40, 30), 3)
    pixels = np.clip(smooth + rng.normal(0, 8, (30, 40, 3)), 0, 255).astype(np.uint8)
    for kind in ("png", "jpeg"):
        written = io.BytesIO()
        Image.fromarray(pixels).save(written, kind)
        yield written.getvalue()


def sizes():
    """(shorter side wanted, height, width), with cases that round a half."""
    rng = np.random.default_rng(1)
    drawn = rng.integers(20, 700, (150, 2))
    return [(side, int(h), int(w)) for side in SHORTER_SIDES for h, w in [*drawn, (375, 500)]]


def inputs(encoded_files, cases, **more):
    arrays = {f"file_{i}": np.frombuffer(data, np.uint8) for i, data in enumerate(encoded_files)}
    about = {"cases": cases, "distortions": [], "draws": 0, "small": [], **more}
    return arrays | {"about": json.dumps(about)}


@pytest.fixture
def expected(theirs):
    """big_vision's results on the random files, included as file_0 and file_1."""
    cases = [(f"{name} {i}", PRECISE + op, i, BOX) for i in (0, 1) for name, (op, _) in OPS.items()]
    cases += [(f"fast {name}", op, 1, BOX) for name, (op, _) in FAST.items()]
    cases += [("precise crop", CROP[0], 1, BOX)]
    return theirs(
        "big_vision",
        "big_vision_preprocessing",
        lambda: inputs(
            files(),
            cases,
            distortions=[(name, level) for name in CHOICES for level in LEVELS],
            draws=WINDOWS,
            drawn_from=DRAWN_FROM,
            corner=CORNER,
            small=sizes(),
        ),
    )


def ours(further_ops, data):
    image = encoded(Example(data, (0,)), 10**9)
    image = Encoded(tf.constant(image.data), tf.constant(image.size), tf.constant(1))
    parsed = ops.parse(f"decode{further_ops}")
    return parsed(image, tf.constant([0, 0], tf.int64), max_image_pixels=10**9).numpy()


@pytest.fixture
def same_window(monkeypatch):
    monkeypatch.setattr(crops, "inception_window", lambda *_: tf.constant(BOX))


@pytest.mark.parametrize("file", [0, 1], ids=["png", "jpeg"])
@pytest.mark.parametrize("name", OPS)
def test_pixels_are_those_of_big_vision(expected, name, file, same_window):
    wanted = expected["precise crop" if (name, file) == ("inception_crop", 1) else f"{name} {file}"]
    actual = ours(OPS[name][1], expected[f"file_{file}"].tobytes())
    np.testing.assert_array_equal(actual, wanted)


@pytest.mark.parametrize("name", FAST)
def test_a_less_exact_decoder_changes_little(expected, name, same_window):
    actual = ours(FAST[name][1], expected["file_1"].tobytes()).astype(int)
    difference = np.abs(actual - expected[f"fast {name}"])
    assert difference.max() <= FAST_LEVELS
    assert difference.mean() <= FAST_MEAN_LEVELS


def test_values_are_those_of_big_vision(expected, same_window):
    pixels = expected["central_crop 0"]
    batch = {"image": pixels[None], "labels": np.zeros([1, 1], np.int32), "weight": np.ones(1)}
    half = (0.5,) * 3
    objective = Objective(Softmax(), 10, 1, mean=half, std=half)
    images, *_ = objective.inputs(batch)
    np.testing.assert_allclose(images[0], expected["value_range"], rtol=0, atol=VALUE_ROUNDING)


def test_both_mirror_some_images(expected):
    """Theirs and ours make the same two images, each half of the time."""
    pixels = expected["central_crop 0"]
    theirs_ = {image.tobytes() for image in expected["flips"]}
    assert theirs_ == {pixels.tobytes(), pixels[:, ::-1].tobytes()}
    flip = flip_lr()
    seeds = [tf.constant([i, 0], tf.int64) for i in range(32)]
    assert {flip.apply(tf.constant(pixels), s).numpy().tobytes() for s in seeds} == theirs_


def test_sizes_are_those_of_big_vision(expected):
    actual = []
    for side, height, width in sizes():
        actual.append(resize_small(side).output_size((height, width)))
    np.testing.assert_array_equal(actual, expected["small"])


def test_windows_are_drawn_as_by_big_vision(expected):
    """Quantiles of their areas, aspects and places."""
    size = tf.constant(DRAWN_FROM)
    window = tf.function(lambda i: crops.inception_window(size, tf.stack([i, 0]), 0.05, 1.0))
    windows = np.array([window(tf.constant(i, tf.int64)).numpy() for i in range(WINDOWS)])
    for name, ours_, theirs_ in zip(
        ("area", "aspect", "top", "left"),
        features(windows),
        features(expected["windows"]),
        strict=True,
    ):
        # Two-sample Kolmogorov-Smirnov at a level of 1e-4.
        both = np.sort(np.concatenate([ours_, theirs_]))
        below = [np.searchsorted(np.sort(x), both, side="right") / len(x) for x in (ours_, theirs_)]
        assert np.abs(below[0] - below[1]).max() < 2.23 * (2 / WINDOWS) ** 0.5, name


def features(windows):
    top, left, height, width = windows.astype(float).T
    rows, columns = DRAWN_FROM
    # A window as large as the image has one place only.
    return (
        height * width / (rows * columns),
        width / height,
        (top + 0.5) / (rows - height + 1),
        (left + 0.5) / (columns - width + 1),
    )


# Pixel centres are whole numbers there; here, as in Pillow, they lie half a pixel further to the
# right and down, which moves a sheared image by half of the slope.
SHEARS = {
    "ShearX": lambda pixels, slope: affine(pixels, (1.0, slope, -slope / 2), (0.0, 1.0, 0.0)),
    "ShearY": lambda pixels, slope: affine(pixels, (1.0, 0.0, 0.0), (slope, 1.0, -slope / 2)),
}
# Ours equal Pillow's bit for bit; theirs has another gray, or truncates a smooth image to whole
# levels, off by up to one, which the factor multiplies.
NEARLY = ("Color", "Sharpness")
ON_BORDERS = 0.02  # rotated places between two pixels, where rounding errors decide


@pytest.mark.parametrize("name", CHOICES)
def test_distortions_are_those_of_big_vision(expected, name):
    pixels = ours("", expected["file_0"].tobytes())[: CORNER[0], : CORNER[1]]
    of = DISTORTIONS.get(f"{name} as published", DISTORTIONS[name])
    for level in LEVELS:
        argument = of.argument(level)
        apply = SHEARS.get(name, lambda x, a: of.apply(x, a, tf.constant([0.75, 0.5, 0.5])))
        actual = apply(tf.constant(pixels), tf.constant(argument)).numpy().astype(int)
        difference = np.abs(actual - expected[f"{name} {level}"])
        if name in NEARLY:
            assert difference.max() <= 1 + abs(1 - argument), level
        elif name == "Rotate":
            assert (difference > 0).any(axis=-1).mean() <= ON_BORDERS, level
        else:
            assert difference.max() == 0, level
