import math

from vit_jax.store.runs import Series
from vit_jax.tools.look.report import chart

STEPS = list(range(1, 10_001))
WAVES = [math.sin(step / 7) for step in STEPS]


def test_few_points_stay_as_they_are():
    series = Series([1, 2, 3], [1.0, math.nan, 2.0])
    assert chart.thin(series, last_step=3, columns=2) is series


def test_peaks_gaps_and_the_end_stay():
    values = list(WAVES)
    values[1234], values[4321], values[7000] = 50.0, -50.0, math.nan
    thinned = chart.thin(Series(STEPS, values), last_step=STEPS[-1], columns=100)
    assert len(thinned.steps) <= 202
    assert thinned.steps == sorted(thinned.steps)
    kept = dict(zip(*thinned, strict=True))
    assert kept[1235] == 50.0 and kept[4322] == -50.0 and math.isnan(kept[7001])
    assert kept[10_000] == values[-1]
    assert all(values[step - 1] == value for step, value in kept.items() if step != 7001)


def test_columns_without_points_are_left_out():
    series = Series([*range(100), *range(900, 1000)], [1.0] * 200)
    assert chart.thin(series, last_step=999, columns=10).steps == [0, 900, 999]


def test_means_leave_out_non_finite_values():
    series = Series([0, 1, 2, 3, 4, 5], [1.0, 3.0, math.nan, 4.0, math.nan, math.nan])
    curve = chart.means(series, last_step=5, columns=3)
    assert curve.steps == [1, 3, 5]
    assert curve.values[:2] == [2.0, 4.0] and math.isnan(curve.values[2])
