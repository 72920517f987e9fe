import functools
from typing import NamedTuple

import numpy as np
import pytest

from vit_jax.data.host_tf import tf
from vit_jax.data.ops.augmentations import random_erasing

BLANK = np.full((200, 100, 3), 7, np.uint8)
# Sides are rounded to whole pixels, and are at least 10 here.
ROUNDING = 0.08


class Window(NamedTuple):
    """The erased window of an image."""

    top: int
    left: int
    height: int
    width: int


def run(seed, pixels=BLANK, **arguments):
    op = graph(**{"probability": 1.0, **arguments})
    return op(tf.constant(pixels), tf.constant([seed, 0], tf.int64)).numpy()


@functools.cache
def graph(**arguments):
    """The op, traced once for all seeds."""
    return tf.function(random_erasing(**arguments).apply)


def window(erased):
    changed = (erased != BLANK).any(axis=-1)
    if not changed.any():
        return None
    rows, columns = np.flatnonzero(changed.any(axis=1)), np.flatnonzero(changed.any(axis=0))
    return Window(rows[0], columns[0], rows[-1] - rows[0] + 1, columns[-1] - columns[0] + 1)


def test_rectangles_are_as_stated():
    windows = [window(run(seed, area_min=0.05, area_max=0.2)) for seed in range(300)]
    assert None not in windows
    areas = np.array([w.height * w.width / (200 * 100) for w in windows if w])
    aspects = np.array([w.height / w.width for w in windows if w])
    assert 0.05 * (1 - ROUNDING) <= areas.min() < 0.06
    assert 0.19 < areas.max() <= 0.2 * (1 + ROUNDING)
    assert 0.3 * (1 - ROUNDING) <= aspects.min() < 0.35
    assert 2.8 < aspects.max() <= (1 + ROUNDING) / 0.3
    assert abs(np.log(aspects).mean()) < 0.2  # neither side is favoured
    assert areas.mean() == pytest.approx(0.125, abs=0.01)
    # Positions are uniform: as many centres above as below, left as right.
    above = np.mean([w.top + w.height / 2 < 100 for w in windows if w])
    left = np.mean([w.left + w.width / 2 < 50 for w in windows if w])
    assert 0.38 < above < 0.62 and 0.38 < left < 0.62


def test_an_aspect_that_is_uniform_itself():
    """As the authors' code (github.com/zhunzhong07/Random-Erasing)."""
    windows = [window(run(seed, area_max=0.1, log_aspect=False)) for seed in range(300)]
    aspects = np.array([w.height / w.width for w in windows if w])
    assert aspects.mean() == pytest.approx((0.3 + 1 / 0.3) / 2, abs=0.15)  # 3 standard errors
    assert aspects.min() >= 0.3 * (1 - ROUNDING) and aspects.max() <= (1 + ROUNDING) / 0.3


@pytest.mark.parametrize(("fill", "colour"), [(0, (0, 0, 0)), ((156, 1, 255), (156, 1, 255))])
def test_fills_with_a_colour(fill, colour):
    erased = run(0, fill=fill)
    assert window(erased) == window(run(0))
    assert {tuple(pixel) for pixel in erased.reshape(-1, 3)} == {(7, 7, 7), colour}


def test_fills_with_uniform_noise():
    noise = np.concatenate(
        [run(seed, area_min=0.4, area_max=0.4, aspect_min=1.0).ravel() for seed in range(10)]
    )
    noise = noise[noise != 7]
    assert noise.min() == 0 and noise.max() == 255
    assert noise.mean() == pytest.approx(127.5 * 256 / 255, abs=1.0)


def test_happens_with_its_probability():
    assert all(window(run(seed, probability=0.0)) is None for seed in range(20))
    count = sum(window(run(seed, probability=0.25)) is not None for seed in range(200))
    assert 26 <= count <= 74  # four standard deviations


@pytest.mark.parametrize("size", [(1, 1), (7, 300), (2, 3)], ids=str)
def test_odd_sizes(size):
    pixels = np.zeros((*size, 3), np.uint8)
    for seed in range(20):
        assert run(seed, pixels).shape == pixels.shape
