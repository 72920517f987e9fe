"""The style of figures; colours stay apart for eyes that lack a kind of cone."""

import itertools
import re
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_rgb

from vit_jax.draw import style


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
