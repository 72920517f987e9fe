"""timm's RandAugment, held to timm's own functions where timm is installed."""

import functools
import importlib.util
import itertools
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vit_jax.data.host_tf import tf
from vit_jax.data.ops import effects
from vit_jax.data.ops.op import chosen
from vit_jax.data.ops.timm_randaugment import DISTORTIONS, timm_randaugment

FILL = (125, 123, 114)


@pytest.fixture(scope="module")
def theirs():
    """timm/data/auto_augment.py, without what the package around it imports."""
    package = importlib.util.find_spec("timm")
    if package is None:
        pytest.skip("timm is not installed")
    path = Path(package.origin).parent / "data" / "auto_augment.py"
    spec = importlib.util.spec_from_file_location("timm_auto_augment", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def distorted(pixels, name, level, sign, is_cubic):
    """Eagerly: a graph's constants are folded, which moves some points by a last bit."""
    interpolated = functools.partial(effects.interpolated, is_cubic=is_cubic, fill=FILL)
    choice = tf.constant(list(DISTORTIONS).index(name))
    level, sign = tf.constant(level, tf.float64), tf.constant(sign, tf.float64)
    changes = list(DISTORTIONS.values())
    return chosen(choice, tf.constant(pixels), changes, level, sign, interpolated).numpy()


@pytest.mark.parity
@pytest.mark.parametrize("name", DISTORTIONS)
def test_each_is_that_of_timm(name, theirs, monkeypatch):
    pixels = np.random.default_rng(0).integers(0, 256, (32, 28, 3), np.uint8)
    assert set(DISTORTIONS) == set(theirs._RAND_INCREASING_TRANSFORMS)
    methods = {True: Image.Resampling.BICUBIC, False: Image.Resampling.BILINEAR}
    levels = (0.0, 3.3, 8.7, 9.0, 9.9)
    for level, sign, is_cubic in itertools.product(levels, (-1, 1), methods):
        monkeypatch.setattr(theirs.random, "random", lambda sign=sign: 0.75 if sign < 0 else 0.25)
        hparams = {"img_mean": FILL, "interpolation": methods[is_cubic]}
        op = theirs.AugmentOp(name, prob=1.0, magnitude=level, hparams=hparams)
        expected = np.asarray(op(Image.fromarray(pixels))).astype(int)
        off = distorted(pixels, name, level, sign, is_cubic) - expected
        # Pillow rounds the scale of AutoContrast (effects.autocontrast).
        assert np.abs(off).max() <= (name == "AutoContrast"), (level, sign, is_cubic)


@pytest.mark.parity
@pytest.mark.parametrize("is_cubic", [True, False])
def test_compiled_they_are_those_of_timm_to_a_level(is_cubic, theirs, monkeypatch):
    """As a pipeline runs them, where level 9 is a constant that is folded into others."""
    pixels = np.random.default_rng(0).integers(0, 256, (80, 96, 3), np.uint8)
    interpolated = functools.partial(effects.interpolated, is_cubic=is_cubic, fill=FILL)
    level = tf.constant(9.0, tf.float64)
    changes = list(DISTORTIONS.values())
    compiled = tf.function(
        lambda pixels, choice, sign: chosen(choice, pixels, changes, level, sign, interpolated)
    )
    method = Image.Resampling.BICUBIC if is_cubic else Image.Resampling.BILINEAR
    for (choice, name), sign in itertools.product(enumerate(DISTORTIONS), (-1, 1)):
        monkeypatch.setattr(theirs.random, "random", lambda sign=sign: 0.75 if sign < 0 else 0.25)
        hparams = {"img_mean": FILL, "interpolation": method}
        op = theirs.AugmentOp(name, prob=1.0, magnitude=9.0, hparams=hparams)
        expected = np.asarray(op(Image.fromarray(pixels))).astype(int)
        args = tf.constant(pixels), tf.constant(choice), tf.constant(sign, tf.float64)
        assert np.abs(compiled(*args).numpy() - expected).max() <= 1, (name, sign)


def test_levels_and_choices_are_drawn():
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8)
    op = timm_randaugment(2, 9, std=0.5)
    results = {
        op.apply(tf.constant(pixels), tf.constant([0, seed], tf.int64)).numpy().tobytes()
        for seed in range(60)
    }
    # A quarter is left as it is; AutoContrast, Equalize and Invert have one result each.
    assert 30 <= len(results) <= 50
    never = timm_randaugment(2, 9, probability=0.0)
    assert (never.apply(tf.constant(pixels), tf.constant([0, 1], tf.int64)).numpy() == pixels).all()
