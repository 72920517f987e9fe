"""Which numbers are drawn, and which of their points."""

import math

from vit_jax.store import runs
from vit_jax.store.runs import Series
from vit_jax.tools.look.report import panels


def keys(arranged):
    return {section: [panel.key for panel in listed] for section, listed in arranged.items()}


def test_every_number_has_its_place(make_workdir):
    first = make_workdir(
        "a",
        {
            1: {
                "train/accuracy": 0.1, "train/grad_norm": 1.0, "train/loss": 1.0,
                "train/learning_rate": 0.1, "speed/input_wait": 0.0, "input/skipped_images": 0.0,
                "speed/saving_secs": 1.0,
                "gradients/blocks/0/norm": 1.0,
            },
            2: {"test/loss": 1.0, "test/accuracy": 0.5, "test/examples": 9.0, "test/new": 3.0},
        },
    )  # fmt: skip
    second = make_workdir("b", {1: {"val/accuracy": 0.5, "val/skipped_images": 2.0}})
    read = runs.read_all([first, second])
    arranged = panels.arrange(read)
    assert keys(arranged) == {
        "Loss and accuracy": [
            "train/loss, test/loss", "train/accuracy, test/accuracy", "val/accuracy",
        ],
        "Optimisation": ["train/learning_rate", "train/grad_norm"],
        "Speed and input": ["speed/input_wait", "speed/saving_secs", "val/skipped_images"],
        "Other results": ["test/new"],
    }  # fmt: skip

    assert panels.evaluations(read) == ["test", "val"]
    assert panels.left_out(read) == 1
    assert [list(panel.lines) for panel in arranged["Loss and accuracy"]] == [[0], [0], [1]]
    assert arranged["Loss and accuracy"][2].title == "val: accuracy"


def test_training_and_evaluations_are_in_one_picture(make_workdir):
    row = {"train/loss": 2.0, "test/loss": 1.0, "val/loss": 3.0, "test/accuracy": 0.5}
    one = runs.read_all([make_workdir("a", {1: row, 9: row})])
    arranged = panels.arrange(one)
    together = "train/loss, test/loss, val/loss"
    assert keys(arranged) == {"Loss and accuracy": [together, "test/accuracy"]}
    panel, _ = arranged["Loss and accuracy"]
    assert list(panel.parts) == ["training", "test", "val"]
    drawn = panels.draw(panel, 9, num_runs=1)
    assert drawn["low"] < 1 and drawn["high"] > 3
    for look, part in enumerate(panel.parts):
        start = f'class="line run{look}" data-run="0" data-look="{look}" data-part="{part}"'
        assert start in drawn["picture"]
    assert ">step<" in drawn["picture"]

    # Of several runs colours tell the runs, and one evaluation's lines are dashed.
    row = {"train/loss": 2.0, "test/loss": 1.0}
    two = runs.read_all([make_workdir(name, {1: row, 9: row}) for name in "bc"])
    (panel,) = panels.arrange(two)["Loss and accuracy"]
    drawn = panels.draw(panel, 9, num_runs=2)["picture"]
    assert drawn.count("stroke-dasharray") == 2
    assert 'data-run="1" data-look="1" data-part="test"' in drawn
    three = runs.read_all([make_workdir(name, {1: row | {"val/loss": 1.0}}) for name in "de"])
    assert keys(panels.arrange(three)) == {
        "Loss and accuracy": ["train/loss, test/loss", "val/loss"]
    }
    others = runs.read_all([make_workdir(n, {1: {"a/loss": 1.0, "b/loss": 1.0}}) for n in "fg"])
    assert keys(panels.arrange(others)) == {"Loss and accuracy": ["a/loss", "b/loss"]}


STEPS = list(range(1, 10_001))
WAVES = [math.sin(step / 7) for step in STEPS]


def test_peaks_gaps_and_the_end_stay():
    values = list(WAVES)
    values[1234], values[4321], values[7000] = 50.0, -50.0, math.nan
    thinned = panels.thin(Series(STEPS, values), last_step=STEPS[-1], columns=100)
    assert len(thinned.steps) <= 202
    assert thinned.steps == sorted(thinned.steps)
    kept = dict(zip(*thinned, strict=True))
    assert kept[1235] == 50.0 and kept[4322] == -50.0 and math.isnan(kept[7001])
    assert kept[10_000] == values[-1]
    assert all(values[step - 1] == value for step, value in kept.items() if step != 7001)


def test_means_leave_out_non_finite_values():
    series = Series([0, 1, 2, 3, 4, 5], [1.0, 3.0, math.nan, 4.0, math.nan, math.nan])
    curve = panels.means(series, last_step=5, columns=3)
    assert curve.steps == [1, 3, 5]
    assert curve.values[:2] == [2.0, 4.0] and math.isnan(curve.values[2])
