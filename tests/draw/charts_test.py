import math
import re

import matplotlib
import pytest
from markupsafe import Markup

from vit_jax.draw import charts


@charts.styled
def shown(low, high, *, log=False):
    """The labels of an axis."""
    axes = charts.blank((330, 188), (46, 322, 10, 164))
    charts.scale(axes.yaxis, low, high, log=log)
    axes.figure.draw_without_rendering()
    return [text for tick in axes.get_yticklabels() if (text := tick.get_text())]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1123, ["0", "200", "400", "600", "800", "1,000"]),
        (0, 100_000, ["0", "20k", "40k", "60k", "80k", "100k"]),
        (0, 2.6e6, ["0", "0.5M", "1.0M", "1.5M", "2.0M", "2.5M"]),
        (0, 3e-3, ["0", "0.0005", "0.0010", "0.0015", "0.0020", "0.0025", "0.0030"]),
        (0, 4e-4, ["0", "1e-4", "2e-4", "3e-4", "4e-4"]),
        (-0.3, 0.3, ["-0.3", "-0.2", "-0.1", "0", "0.1", "0.2", "0.3"]),
        (2.2345, 2.2349, ["2.2345", "2.2346", "2.2347", "2.2348", "2.2349"]),
        (0, 1, ["0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        (0, 3e12, ["0", "5e11", "1e12", "1.5e12", "2e12", "2.5e12", "3e12"]),
    ],
)
def test_ticks_are_round(low, high, expected):
    assert shown(low, high) == expected


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.9, 60, ["1", "2", "5", "10", "20", "50"]),
        (1e-4, 1, ["1e-4", "1e-3", "1e-2", "1e-1", "1e0"]),
    ],
)
def test_logarithmic_ticks_are_powers(low, high, expected):
    assert shown(low, high, log=True) == expected


def test_few_powers_of_many_are_shown():
    ticks = shown(1e-29, 1e29, log=True)
    assert 4 <= len(ticks) <= 8
    assert all(tick.startswith("1e") for tick in ticks)


def test_axes_hold_their_values():
    assert charts.limits([0.2, 0.3], start=0.0, end=1.0) == (0.0, 1.0)
    low, high = charts.limits([-1.0, 3.0], start=0.0, end=1.0)
    assert low < -1 and high > 3
    low, high = charts.limits([1.0, 100.0], start=0.0, log=True)
    assert 0 < low < 1 and high > 100


@pytest.mark.parametrize("value", [0.0, 5.0, -5.0, 1e29, 1e-29, 5e-324, 1 + 2e-16])
@pytest.mark.parametrize("start", [None, 0.0])
def test_a_constant_has_an_axis(value, start):
    low, high = charts.limits([value, value], start=start)
    assert low <= value <= high
    assert shown(low, high)


def test_neighbouring_floats_have_an_axis():
    low, high = charts.limits([2.0, math.nextafter(2.0, 3)])
    assert low <= 2.0 <= high
    assert 0 < len(shown(low, high)) < 20


@charts.styled
def line(colour="#123456"):
    """A chart of one line, whose group is called "a" in the picture."""
    axes = charts.blank((100, 60), (20, 90, 5, 45))
    charts.scale(axes.xaxis, 0, 10)
    charts.scale(axes.yaxis, 0.5, 1.5)
    axes.plot([0, 10], [0.5, 1.5], color=colour, gid="a")
    return axes


def test_edges_are_pixels_of_the_picture():
    text = charts.svg(line(), 'a "title"', {"a": (Markup('class="line"'), "<hint>")})
    assert text.startswith('<svg viewBox="0 0 100 60" role="img" aria-label="a &#34;title&#34;">')
    assert re.search(
        r'<g class="line"><title>&lt;hint&gt;</title>\s*<path d="M 20 45\s+L 90 5\s+"', text
    )


def test_a_picture_has_the_colours_and_the_font_of_its_page_and_no_names_that_could_clash():
    text = charts.svg(line(charts.RUNS[2]), "title")
    assert "stroke: var(--colour2)" in text and "fill: var(--quiet)" in text
    assert "font" not in text and "url(" not in text and "http" not in text
    assert not re.search(r' id="[a-z]*_', text)
    assert charts.svg(line(charts.RUNS[2]), "title") == text


def test_matplotlibs_settings_of_the_user_change_nothing():
    with matplotlib.rc_context({"lines.linewidth": 9.0, "svg.fonttype": "path"}):
        text = charts.svg(line(), "title")
    assert text == charts.svg(line(), "title")


def test_runs_look_different():
    looks = {(charts.RUNS[i % len(charts.RUNS)], charts.dashes(i)) for i in range(28)}
    assert len(looks) == 28
