"""Curves and movies over steps."""

import io

import numpy as np
import pytest
from PIL import Image

from tests.draw.drawn import LONG, check
from vit_jax.tools.look.visualize.development import draw_curves, webp

LEVELS = 12  # of 255, on average, of what compression may change
rng = np.random.default_rng(0)


@pytest.mark.parametrize("number", [1, 3])
def test_development(number):
    steps = [0, 10, 1_000_000]
    made = {
        "accuracy of the test (%)": [1, 2, 3],
        "mean attention distance (pixels)": rng.random((3, 12)),
        LONG: rng.random((3, 2)),
    }
    check(
        lambda: draw_curves(steps, dict(list(made.items())[:number])),
        "accuracy of the test (%)",
        "step",
        "1e+06",
        *(["mean attention distance (pixels)", "12 layers"] if number > 1 else []),
    )


def frames(number, height=48, width=64):
    """A square that moves over a gradient."""
    made = np.zeros((number, height, width, 3), np.uint8)
    made[..., 0] = np.linspace(0, 255, width)
    for k in range(number):
        made[k, 8:24, 4 * k : 4 * k + 16] = (0, 114, 178)
    return made


@pytest.mark.parametrize("number", [1, 5])
def test_frames_come_back(number):
    shown = frames(number)
    data = webp(shown)
    assert webp(shown) == data
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
            assert durations == [600] * (number - 1) + [2000]
