import io
import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from PIL import Image

from vit_jax.draw.style import look


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (0, "0"), (1, "1"), (0.05, "0.05"), (-3.5, "-3.5"), (1500, "1.5 k"), (20e6, "20 M"),
        (999_999, "1 M"), (3e9, "3 G"), (1e-6, "10⁻⁶"), (3e18, "3×10¹⁸"), (2.5e-7, "2.5×10⁻⁷"),
    ],
)  # fmt: skip
def test_short(number, shown):
    assert look.short(number) == shown


def test_matplotlibs_settings_stay_those_of_the_user():
    with matplotlib.rc_context({"font.size": 31.0, "axes.facecolor": "red"}):
        before = dict(matplotlib.rcParams)

        @look.styled
        def draw():
            figure = look.blank(2, 1)
            figure.add_subplot().set_xlabel("x")
            return figure

        data = look.png(draw())
        assert dict(matplotlib.rcParams) == before
    assert look.png(draw()) == data


def test_pixels_are_those_of_the_png():
    figure = look.blank(2, 1)
    figure.add_subplot().plot([1, 2])
    look.settle(figure)
    with Image.open(io.BytesIO(look.png(figure, dpi=50))) as image:
        np.testing.assert_array_equal(look.pixels(figure, dpi=50), np.asarray(image)[..., :3])


def test_displayed():
    gray = np.array([[0.0, 0.5], [1.0, 2.0]])
    assert look.displayed(gray)[..., 0].tolist() == [[0, 128], [255, 255]]
    assert look.displayed(gray).shape == (2, 2, 3)
    colour = np.full((2, 2, 3), 7, np.uint8)
    assert look.displayed(colour) is colour


def test_pyplot_is_not_imported():
    folder = Path(look.__file__).parent.parent / "figures"
    modules = [f"vit_jax.draw.figures.{file.stem}" for file in folder.glob("[a-z]*.py")]
    program = f"import {', '.join(modules)}, sys; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
