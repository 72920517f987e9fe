"""The style of figures; colours stay apart for eyes that lack a kind of cone."""

import io
import itertools
import re
import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from vit_jax.draw import style


def test_labels():
    assert style.labels([0.0, 0.005, 0.01], percent=True) == ["0", "0.5%", "1.0%"]
    assert style.labels([1.0, 1e3, 1e6]) == ["1", "1,000", "1e6"]


def test_matplotlibs_settings_stay_those_of_the_user():
    with matplotlib.rc_context({"font.size": 31.0, "axes.facecolor": "red"}):
        before = dict(matplotlib.rcParams)

        @style.styled
        def draw():
            figure = style.blank(2, 1)
            figure.add_subplot().set_xlabel("x")
            return figure

        data = style.png(draw())
        assert dict(matplotlib.rcParams) == before
    assert style.png(draw()) == data


def test_pixels_are_those_of_the_png():
    @style.styled
    def draw():
        figure = style.blank(2, 1)
        figure.add_subplot().plot([1, 2])
        return figure

    figure = draw()
    with Image.open(io.BytesIO(style.png(figure, dpi=50))) as image:
        np.testing.assert_array_equal(style.pixels(figure, dpi=50), np.asarray(image)[..., :3])


def test_displayed():
    gray = np.array([[0.0, 0.5], [1.0, 2.0]])
    assert style.displayed(gray)[..., 0].tolist() == [[0, 128], [255, 255]]
    assert style.displayed(gray).shape == (2, 2, 3)
    colour = np.full((2, 2, 3), 7, np.uint8)
    assert style.displayed(colour) is colour


def test_pyplot_is_not_imported():
    root = Path(style.__file__).parents[1]
    drawing = [*root.glob("draw/[a-z]*.py"), *root.glob("tools/look/visualize/[a-z]*.py")]
    names = [
        ".".join(("vit_jax", *file.relative_to(root).with_suffix("").parts)) for file in drawing
    ]
    assert "vit_jax.tools.look.visualize.features" in names
    program = f"import {', '.join(names)}, sys; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


# Severity 1 of Machado, Oliveira and Fernandes, "A physiologically-based model for simulation of
# color vision deficiency", IEEE TVCG 15(6), 2009, on linear RGB.
SIMULATION = {
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
# CIE 1976 difference, of which about 2 can just be seen side by side.
APART = 12.0
TOGETHER = 2.0


def linear(rgb):
    x = np.asarray(rgb, float)
    return np.where(x <= 0.04045, x / 12.92, ((x + 0.055) / 1.055) ** 2.4)


def lab(linear_rgb):
    """CIE L*a*b* under D65."""
    to_xyz = [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
    xyz = np.clip(linear_rgb, 0, 1) @ np.transpose(to_xyz) / [0.95047, 1.0, 1.08883]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    x, y, z = np.moveaxis(f, -1, 0)
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=-1)


def seen(rgb, eyes):
    """L*a*b* of colours as such eyes see them."""
    return lab(linear(rgb) @ np.transpose(SIMULATION[eyes]) if eyes else linear(rgb))


CSS = Path(style.__file__).with_name("page.css").read_text()
SEVENS = re.findall(r"--colour\d: (#\w{6});", CSS)
DARK = tuple(SEVENS[len(SEVENS) // 2 :])


@pytest.mark.parametrize("eyes", [None, *SIMULATION])
@pytest.mark.parametrize("series", [style.SERIES, DARK], ids=["light", "dark"])
def test_series_are_apart(series, eyes):
    colours = seen([to_rgb(colour) for colour in series], eyes)
    assert len(colours) == 7
    for (k, one), (m, other) in itertools.combinations(enumerate(colours), 2):
        difference = np.linalg.norm(one - other)
        assert difference > APART, (series[k], series[m], difference)


@pytest.mark.parametrize("eyes", [None, *SIMULATION])
@pytest.mark.parametrize("name", [style.HEAT, style.SIGNED])
def test_heat_gets_lighter_from_end_to_end(name, eyes):
    lightness = seen(matplotlib.colormaps[name](np.linspace(0, 1, 64))[:, :3], eyes)[:, 0]
    assert (np.diff(lightness) > 0).all()
    assert np.ptp(lightness) > 70


def test_the_test_finds_red_and_green():
    """The tests above would pass on anything if this failed: a pair that looks alike is found."""
    red_green = [(0.80, 0.25, 0.0), (0.44, 0.44, 0.0)]
    one, other = seen(red_green, None)
    assert np.linalg.norm(one - other) > 3 * APART
    one, other = seen(red_green, "deuteranopia")
    assert np.linalg.norm(one - other) < APART
    jet = seen(matplotlib.colormaps["jet"](np.linspace(0, 1, 64))[:, :3], None)[:, 0]
    assert not (np.diff(jet) > 0).all()


def test_series_recur_late():
    assert len({style.series(k) for k in range(49)}) == 49
    assert len({style.series(k)[0] for k in range(7)}) == 7
