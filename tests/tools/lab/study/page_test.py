"""Performance over examples and compute."""

import numpy as np
import pytest

from tests.draw.drawn import check
from vit_jax.probes import scaling_law
from vit_jax.probes.scaling_law import Interval
from vit_jax.tools.lab.study.page import Series, draw_scaling, pictures
from vit_jax.tools.lab.study.results import Curve, FittedCurve, StudyResult, frontier, laws

FAMILIES = {"ViT": 3, "hybrid": 2, "ResNet": 4}


def series(families):
    """Models that are better, and cost more, from one to the next."""
    made = []
    for number, (family, models) in enumerate(families.items()):
        for model in range(models):
            x = np.geomspace(1e-3, 1e-1, 4) * 3**model
            y = 0.4 + 0.1 * np.log10(x * 1e3) + 0.03 * number
            made.append(Series(f"{family}-{model}/16", family, x, y, np.array([0, 2, 3])))
    return made


def law(name, *, interval=True):
    x = np.geomspace(1e-3, 10, 30)
    loss = 0.6 - 0.1 * np.log10(x * 1e3)
    width = 0.02 if interval else np.nan
    return FittedCurve(
        Curve(name, "exaflops", np.array([1e-3, 1.0]), loss[[0, -1]]),
        scaling_law.ScalingLaw("M1", 0, 1),
        x,
        Interval(loss, loss - width, loss + width),
    )


@pytest.mark.parametrize("families", [FAMILIES, {"ViT": 9}, {"ResNet": 1}], ids=len)
def test_scaling(families):
    figure = check(
        lambda: draw_scaling(
            series(families),
            [law("all models")],
            metric="test/accuracy",
            x_label="training compute (exaFLOPs)",
            against="compute",
        ),
        "training compute (exaFLOPs)",
        "test: accuracy",
        "-0/16",
        "law of all models",
        "dashed: extrapolated; bands: 90% intervals",
        "%",
        "0.1",
    )
    (axes,) = figure.axes
    dashes = [line for line in axes.lines if line.is_dashed()]
    assert len(dashes) == 1
    assert dashes[0].get_xdata().max() == 10
    assert dashes[0].get_xdata().min() <= 1


def test_a_table_of_laws_has_a_row_for_each_curve():
    fitted = law("all models"), law("ViT-0/16", interval=False)
    none = fitted[0]._replace(law=None, why="too few points")
    best = frontier([1.0], {0: 2.6})
    result = StudyResult(
        "config.py", "loss", [], {"m": {0: 2.6}}, best, {}, [], [], [*fitted, none]
    )
    titles = [each.title for each in pictures(result)]
    assert titles == ["loss, against compute", "loss, against data"]
    assert laws(result) == [
        ["all models", "exaFLOPs", "M1", "1.000", "", "10.0", "0.200", "0.180 to 0.220", ""],
        ["ViT-0/16", "exaFLOPs", "M1", "1.000", "", "10.0", "0.200", "",
         "no interval: as many points as parameters"],
        ["all models", "exaFLOPs", "none", "", "", "", "", "", "too few points"],
    ]  # fmt: skip
