import io

import numpy as np
import pytest
from PIL import Image

from vit_jax.core.errors import UserError
from vit_jax.draw import movie

LEVELS = 12  # of 255, on average, of what compression may change


def frames(number, height=48, width=64):
    """A square that moves over a gradient."""
    made = np.zeros((number, height, width, 3), np.uint8)
    made[..., 0] = np.linspace(0, 255, width)
    for k in range(number):
        made[k, 8:24, 4 * k : 4 * k + 16] = (0, 114, 178)
    return made


@pytest.mark.parametrize("save", [movie.gif, movie.webp])
@pytest.mark.parametrize("number", [1, 5])
def test_frames_come_back(save, number):
    shown = frames(number)
    data = save(shown, seconds=0.5)
    assert save(shown, seconds=0.5) == data
    with Image.open(io.BytesIO(data)) as image:
        assert getattr(image, "n_frames", 1) == number
        durations = []
        for k in range(number):
            image.seek(k)
            got = np.asarray(image.convert("RGB")).astype(int)
            durations.append(image.info.get("duration"))
            assert np.abs(got - shown[k]).mean() < LEVELS
        if number > 1:
            assert image.info["loop"] == 0
            assert durations == [500] * (number - 1) + [2000]


def test_wide_frames_are_made_smaller():
    with Image.open(io.BytesIO(movie.gif(frames(2, 100, 1000)))) as image:
        assert image.size == (640, 64)


def test_white_stays_white():
    shown = np.full((3, 48, 64, 3), 255, np.uint8)
    shown[:, 8:24] = np.random.default_rng(0).integers(0, 256, (3, 16, 64, 3))
    shown[:, 24:26] = 250  # which is averaged with white
    with Image.open(io.BytesIO(movie.gif(shown))) as image:
        assert np.asarray(image.convert("RGB"))[30:].min() == 255


def test_bad_input():
    with pytest.raises(UserError, match="no frames"):
        movie.gif([])
    with pytest.raises(UserError, match=r"one size.*\(48, 64\), \(9, 9\)"):
        movie.webp([frames(1)[0], np.zeros((9, 9, 3), np.uint8)])
