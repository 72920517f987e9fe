"""RandAugment with legacy=True, against the code that the published recipes used."""

import json

import numpy as np

from vit_jax.data.host_tf import tf
from vit_jax.data.ops.autoaugment import AS_PUBLISHED, CHOICES, DISTORTIONS

MAGNITUDES = (0, 10, 15, 20, 25)
DRAWN = ("Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY", "Cutout")


def test_distortions_are_those_of_the_published_code(theirs):
    pixels = np.random.default_rng(0).integers(0, 256, (24, 32, 3), np.uint8)
    of_theirs = dict(zip(CHOICES, AS_PUBLISHED, strict=True))
    names = [name for name in CHOICES if name not in DRAWN]
    inputs = {"pixels": pixels, "names": json.dumps(names), "magnitudes": np.array(MAGNITUDES)}
    expected = theirs("big_vision", "big_vision_randaugment", lambda: inputs)
    for name in names:
        distortion = DISTORTIONS[of_theirs[name]]
        for magnitude in MAGNITUDES:
            argument = tf.constant(distortion.argument(magnitude))
            actual = distortion.apply(tf.constant(pixels), argument, tf.zeros([3])).numpy()
            np.testing.assert_array_equal(actual, expected[f"{name} {magnitude}"], name)
