import math

import numpy as np
import pytest
from etils import epath

from vit_jax.draw import style
from vit_jax.tools.lab.sweep import grid, picture
from vit_jax.tools.lab.sweep.progress import PointProgress


@pytest.fixture
def rows(tmp_path):
    """`rows({"seed": ("0", "1")}, value)`: finished points whose metric is value(axis values)."""

    def rows(axes, value):
        points = grid.SweepGrid({"config": "x.py"}, axes).points()
        return [
            PointProgress(
                grid.Point(number, values, {}),
                epath.Path(tmp_path),
                "finished",
                numbers={"test/accuracy": value(values)},
            )
            for number, values in enumerate(points, start=1)
        ]

    return rows


LR = ("1e-4", "1e-3", "1e-2")


def test_seeds_are_dots_and_a_second_axis_lines(rows):
    axes = {"optim.weight_decay": ("0.1", "0.3"), "seed": ("0", "1"), "optim.lr": LR}
    axis, lines = picture.curves(rows(axes, lambda v: float(v["seed"])), "test/accuracy")
    assert axis == "optim.lr"
    assert list(lines) == ["weight_decay 0.1", "weight_decay 0.3"]
    assert lines["weight_decay 0.1"] == {lr: [0.0, 1.0] for lr in LR}


def test_numbers_precede_names_and_only_finished_points_count(rows):
    axes = {"optim.name": ("adam", "sgd", "lion"), "optim.lr": ("1", "2")}
    points = rows(axes, lambda v: math.nan if v["optim.name"] == "sgd" else 0.5)
    points[-1] = points[-1]._replace(state="failed")
    axis, lines = picture.curves(points, "test/accuracy")
    assert axis == "optim.lr"
    assert {name: list(dots) for name, dots in lines.items()} == {
        "name adam": ["1", "2"],
        "name lion": ["1"],
    }


@pytest.mark.parametrize(
    "axes",
    [
        {"optim.lr": LR, "seed": ("0", "1")},
        {"config": ("configs/a.py", "configs/b.py"), "optim.lr": LR},
        {"seed": ("0", "1", "2")},
        {"seed": tuple(map(str, range(40))), "optim.lr": LR, "loss.mixup": LR},
        {},
    ],
)
def test_every_grid_is_drawn(rows, axes):
    axis, lines = picture.curves(rows(axes, lambda v: 0.5 + len(v) / 100), "test/accuracy")
    pixels = style.pixels(picture.draw(axis, lines, "test/accuracy"))
    width, height = (round(style.DPI * side) for side in picture.SIZE_IN)
    assert pixels.shape[:2] == (height, width)
    blue = [int(style.BLUE[i : i + 2], 16) for i in (1, 3, 5)]
    assert (np.abs(pixels.astype(int) - blue) < 40).all(-1).any()
