import functools
from collections.abc import Callable
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


def run(seed: int, pixels: np.ndarray = BLANK, **arguments: float) -> np.ndarray:
    op = graph(**{"probability": 1.0, **arguments})
    return op(tf.constant(pixels), tf.constant([seed, 0], tf.int64)).numpy()


@functools.cache
def graph(**arguments: float) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """The op, traced once for all seeds."""
    return tf.function(random_erasing(**arguments).apply)


def window(erased: np.ndarray) -> Window | None:
    changed = (erased != BLANK).any(axis=-1)
    if not changed.any():
        return None
    rows, columns = np.flatnonzero(changed.any(axis=1)), np.flatnonzero(changed.any(axis=0))
    return Window(rows[0], columns[0], rows[-1] - rows[0] + 1, columns[-1] - columns[0] + 1)


def test_rectangles_are_as_stated() -> None:
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


def test_fills_with_uniform_noise() -> None:
    noise = np.concatenate(
        [run(seed, area_min=0.4, area_max=0.4, aspect_min=1.0).ravel() for seed in range(10)]
    )
    noise = noise[noise != 7]
    assert noise.min() == 0 and noise.max() == 255
    assert noise.mean() == pytest.approx(127.5 * 256 / 255, abs=1.0)


def test_happens_with_its_probability() -> None:
    assert all(window(run(seed, probability=0.0)) is None for seed in range(20))
    count = sum(window(run(seed, probability=0.25)) is not None for seed in range(200))
    assert 26 <= count <= 74  # four standard deviations


def test_is_a_function_of_the_seed() -> None:
    np.testing.assert_array_equal(run(3), run(3))
    assert (run(3) != run(4)).any()


def test_what_never_fits_changes_nothing() -> None:
    assert window(run(0, area_min=1.0, area_max=1.0, aspect_min=1.0)) is None


@pytest.mark.parametrize("size", [(1, 1), (7, 300), (2, 3)], ids=str)
def test_odd_sizes(size: tuple[int, int]) -> None:
    pixels = np.zeros((*size, 3), np.uint8)
    for seed in range(20):
        assert run(seed, pixels).shape == pixels.shape
