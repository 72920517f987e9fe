import math

import pytest

from vit_jax.draw import scales
from vit_jax.draw.scales import Scale


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
    assert scales.labels(Scale(low, high).ticks(6)) == expected


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.9, 60, ["1", "2", "5", "10", "20", "50"]),
        (1e-4, 1, ["1e-4", "1e-3", "1e-2", "1e-1", "1e0"]),
        (1e-29, 1e29, ["1e-20", "1e-10", "1e0", "1e10", "1e20"]),
    ],
)
def test_logarithmic_ticks_are_powers(low, high, expected):
    assert scales.labels(Scale(low, high, log=True).ticks(6)) == expected


def test_percent():
    assert scales.labels([0.0, 0.005, 0.01], percent=True) == ["0", "0.5%", "1.0%"]


def test_ends_have_places_0_and_1():
    for scale in (Scale(1, 100), Scale(1, 100, log=True)):
        assert (scale.place(1), scale.place(100)) == (0, 1)
    assert Scale(1, 100, log=True).place(10) == pytest.approx(0.5)


def test_axes_hold_their_values():
    assert scales.fit([0.2, 0.3], start=0.0, end=1.0, log=False) == (0.0, 1.0, False)
    low, high, _ = scales.fit([-1.0, 3.0], start=0.0, end=1.0, log=False)
    assert low < -1 and high > 3
    low, high, log = scales.fit([1.0, 100.0], start=0.0, end=None, log=True)
    assert 0 < low < 1 and high > 100 and log


@pytest.mark.parametrize("value", [0.0, 5.0, -5.0, 1e29, 1e-29, 5e-324, 1 + 2e-16])
@pytest.mark.parametrize("start", [None, 0.0])
def test_a_constant_has_an_axis(value, start):
    scale = scales.fit([value, value], start=start, end=None, log=False)
    assert scale.low <= value <= scale.high
    assert math.isfinite(scale.place(value))
    assert scales.labels(scale.ticks(6))


def test_neighbouring_floats_have_an_axis():
    scale = scales.fit([2.0, math.nextafter(2.0, 3)], start=None, end=None, log=False)
    assert 0 <= scale.place(2.0) <= 1
    assert len(scale.ticks(6)) < 20
