import itertools
import json
import zlib
from collections import Counter

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from vit_jax.data.host_tf import tf
from vit_jax.data.ops import autoaugment
from vit_jax.data.ops.autoaugment import DISTORTIONS, POLICIES, distort

SIGNED = ("Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY")
MIDDLE = (0.75, 0.5, 0.5)  # the positive sign, the centre


def distorted(pixels, name, argument, chance=MIDDLE):
    names = list(DISTORTIONS)
    choice = tf.constant(names.index(name))
    return distort(
        tf.constant(pixels), names, choice, tf.constant(argument), tf.constant(chance)
    ).numpy()


@pytest.mark.parametrize(
    ("name", "at_0", "at_10", "at_15", "at_30"),
    [
        ("AutoContrast", 0, 0, 0, 0),
        ("Invert", 0, 0, 0, 0),
        ("Rotate", 0, 30, 45, 90),
        ("Posterize", 1, 4, 6, 8),
        ("Solarize", 0, 256, 256, 256),
        ("SolarizeAdd", 0, 110, 165, 255),
        ("Color", 0.1, 1.9, 2.8, 5.5),
        ("Sharpness", 0.1, 1.9, 2.8, 5.5),
        ("ShearX", 0, 0.3, 0.45, 0.9),
        ("TranslateX", 0, 100, 150, 300),
        ("TranslateY far", 0, 250, 375, 750),
        ("Cutout", 0, 40, 60, 120),
        ("TranslateX of width", 0, 150 / 331, 225 / 331, 450 / 331),
        ("TranslateY of height", 0, 150 / 331, 225 / 331, 450 / 331),
        ("Solarize as published", 0, 0, 128, 0),  # modulo 256
        ("Contrast as published", 0.1, 1.9, 2.8, 5.5),
        ("Posterize as published", 1, 4, 6, 1),
        ("Rotate in torch", 0, 30 * 10 / 9, 50, 100),
        ("Posterize in torch", 8, 4, 1, 0),
        ("Solarize in torch", 256, 256 * (1 - 10 / 9), 256 * (1 - 15 / 9), 256 * (1 - 30 / 9)),
        ("Color in torch", 0, 1, 1.5, 3),
        ("Sharpness in torch", 0, 1, 1.5, 3),
        ("ShearX in torch", 0, 10, 15, 30),
        ("TranslateX in torch", 0, 1500 / 9 / 331, 250 / 331, 500 / 331),
    ],
)
def test_arguments_by_level(name, at_0, at_10, at_15, at_30):
    arguments = [DISTORTIONS[name].argument(level) for level in (0, 10, 15, 30)]
    assert arguments == pytest.approx([at_0, at_10, at_15, at_30])


@pytest.mark.parametrize("name", DISTORTIONS)
def test_odd_sizes(name):
    for size, level in itertools.product([(1, 1), (7, 300), (2, 5)], (0, 10, 30)):
        pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
        result = distorted(pixels, name, DISTORTIONS[name].argument(level))
        assert result.shape == pixels.shape


# The functions of github.com/DeepVoltaire/AutoAugment (transforms.py), by their calls of Pillow.
def _affine(image, matrix, **options):
    return image.transform(
        image.size, Image.Transform.AFFINE, matrix, fillcolor=(128, 128, 128), **options
    )


def _rotated(image, degrees, sign):
    turned = image.convert("RGBA").rotate(degrees)
    gray = Image.new("RGBA", turned.size, (128,) * 4)
    return Image.composite(turned, gray, turned).convert("RGB")


# Fraction of pixels, of colours and of places: Pillow computes in double precision.
OTHER_PIXELS = (0, 0.005)
GEOMETRIC = ("Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY")
CUBIC = {"resample": Image.Resampling.BICUBIC}
IN_TORCH = {
    "Rotate": (30, _rotated),
    "ShearX": (0.3, lambda x, a, sign: _affine(x, (1, a * sign, 0, 0, 1, 0), **CUBIC)),
    "ShearY": (0.3, lambda x, a, sign: _affine(x, (1, 0, 0, a * sign, 1, 0), **CUBIC)),
    "TranslateX": (150 / 331, lambda x, a, s: _affine(x, (1, 0, a * x.size[0] * s, 0, 1, 0))),
    "TranslateY": (150 / 331, lambda x, a, s: _affine(x, (1, 0, 0, 0, 1, a * x.size[1] * s))),
    "Color": (0.9, lambda x, a, sign: ImageEnhance.Color(x).enhance(1 + a * sign)),
    "Contrast": (0.9, lambda x, a, sign: ImageEnhance.Contrast(x).enhance(1 + a * sign)),
    "Brightness": (0.9, lambda x, a, sign: ImageEnhance.Brightness(x).enhance(1 + a * sign)),
    "Sharpness": (0.9, lambda x, a, sign: ImageEnhance.Sharpness(x).enhance(1 + a * sign)),
    "Solarize": (-256, lambda x, a, sign: ImageOps.solarize(x, 256 + a)),
    "Posterize": (-4, lambda x, a, sign: ImageOps.posterize(x, int(np.round(8 + a)))),
}


@pytest.mark.parametrize("name", IN_TORCH)
def test_each_in_torch_is_that_of_pillow(name):
    """At all ten levels, but where a point lies on the border of two pixels or of the image."""
    limit, theirs = IN_TORCH[name]
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
    named = f"{name} in torch"
    for level, sign in itertools.product(range(10), (-1, 1)):
        argument = DISTORTIONS[named].argument(level)
        ours = distorted(pixels, named, argument, (0.25 if sign < 0 else 0.75, 0.5, 0.5))
        expected = theirs(Image.fromarray(pixels), np.linspace(0, limit, 10)[level], sign)
        off = (ours != np.asarray(expected)).any(axis=-1)
        assert off.mean() <= OTHER_PIXELS[name in GEOMETRIC], (level, sign)


@pytest.mark.parametrize("name", SIGNED)
def test_either_direction(name):
    pixels = np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)
    argument = DISTORTIONS[name].argument(3)
    positive = distorted(pixels, name, argument)
    negative = distorted(pixels, name, argument, (0.25, 0.5, 0.5))
    np.testing.assert_array_equal(negative, distorted(pixels, name, -argument))
    assert (positive != negative).any()


DRAWS = 1000  # 40 for each of 25 sub-policies


# CRC-32 of each policy as JSON, taken when it was compared entry by entry: `v0` with timm 1.0.31,
# which has the authors', the others with torchvision 0.29.1. (Both compute translations
# differently.)
COMPARED = {"v0": 3671117733, "imagenet": 1696799241, "cifar10": 1817546697, "svhn": 1317808211}


@pytest.mark.parametrize("policy", POLICIES)
def test_policies_are_as_published(policy):
    assert zlib.crc32(json.dumps(POLICIES[policy]).encode()) == COMPARED[policy]
    assert len(POLICIES[policy]) == 25
    for name, probability, level in (step for steps in POLICIES[policy] for step in steps):
        assert name in autoaugment.DISTORTIONS
        assert 0 <= probability <= 1 and 0 <= level <= 10
        assert probability == round(probability, 1)


def test_draws_sub_policies_equally_often_and_steps_by_their_probability(drawn):
    sub_policies = POLICIES["v0"]
    draws = drawn(autoaugment.autoaugment("v0"), DRAWS)
    expected = Counter()
    for name, probability, _ in (step for steps in sub_policies for step in steps):
        expected[name.replace("TranslateY", "TranslateY far")] += (
            probability * DRAWS / len(sub_policies)
        )
    counts = Counter(name for name, _, _ in draws if name)
    for name, count in expected.items():
        assert abs(counts[name] - count) < 4.5 * count**0.5, name
    # Both ops of one sub-policy, unique to it: 1.0 and 0.8 of 40, standard deviation 5.6.
    pairs = Counter((a[0], b[0]) for a, b in zip(draws[::2], draws[1::2], strict=True))
    assert 10 < pairs["Rotate", "TranslateY far"] < 54


@pytest.mark.parametrize("legacy", [False, True])
def test_arguments_are_those_of_the_level(drawn, legacy):
    levels = {}
    for named, _, level in (step for steps in POLICIES["v0"] for step in steps):
        name = autoaugment.named(named, "as published") if legacy else named
        name = name.replace("TranslateY", "TranslateY far")
        argument = autoaugment.DISTORTIONS[name].argument(level)
        levels.setdefault(name, set()).add(np.float32(argument).item())
    draws = drawn(autoaugment.autoaugment("v0", legacy), 400)
    assert all(argument in levels[name] for name, argument, _ in draws if name)
    seen = {(name, argument) for name, argument, _ in draws if name}
    assert len(seen) > 0.8 * sum(map(len, levels.values()))
    # Level 10, which the third-last sub-policy has: without an effect, or a negative.
    assert ("Solarize as published", 0.0) in seen if legacy else ("Solarize", 256.0) in seen
