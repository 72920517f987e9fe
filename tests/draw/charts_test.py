import re

import pytest
from markupsafe import Markup

from vit_jax.draw import charts


@charts.styled
def shown(low, high, *, log=False):
    """The labels of an axis."""
    axes = charts.blank((330, 188), (46, 322, 10, 164))
    charts.scale(axes.yaxis, low, high, log=log)
    axes.figure.draw_without_rendering()
    ticks = zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)
    return [tick.get_text() for place, tick in ticks if low <= place <= high or high - low < 1e-9]


@pytest.mark.parametrize(
    ("low", "high", "log", "expected"),
    [
        (0, 1123, False, ["0", "200", "400", "600", "800", "1,000"]),
        (0, 100_000, False, ["0", "20,000", "40,000", "60,000", "80,000", "100,000"]),
        (0, 2.6e6, False, ["0", "500,000", "1e+06", "1.5e+06", "2e+06", "2.5e+06"]),
        (0, 4e-4, False, ["0", "0.0001", "0.0002", "0.0003", "0.0004"]),
        (2.2345, 2.2349, False, ["2.2345", "2.2346", "2.2347", "2.2348", "2.2349"]),
        (0.9, 60, True, ["1", "2", "5", "10", "20", "50"]),
        (1e-4, 1, True, ["0.0001", "0.001", "0.01", "0.1", "1"]),
    ],
)
def test_ticks_are_round(low, high, log, expected):
    assert shown(low, high, log=log) == expected


def test_axes_hold_their_values():
    assert charts.limits([0.2, 0.3], start=0.0, end=1.0) == (0.0, 1.0)
    low, high = charts.limits([-1.0, 3.0], start=0.0, end=1.0)
    assert low < -1 and high > 3
    low, high = charts.limits([1.0, 100.0], start=0.0, log=True)
    assert 0 < low < 1 and high > 100


@pytest.mark.parametrize("value", [0.0, -5.0, 1e29, 5e-324, 1 + 2e-16])
@pytest.mark.parametrize("start", [None, 0.0])
def test_a_constant_has_an_axis(value, start):
    low, high = charts.limits([value, value], start=start)
    assert low <= value <= high
    assert shown(low, high)


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
