import re

from markupsafe import escape

from vit_jax.store import runs
from vit_jax.tools.look.report import tables


def cells(head, rows, *_):
    """The text of each cell, row by row."""
    return [
        [re.sub(r"(?s)<(?!/?b>).*?>", "", escape(text)) for text in row] for row in (head, *rows)
    ]


def test_tables_say_how_runs_ended(make_workdir):
    first = make_workdir(
        "a",
        {
            10: {"train/loss": 2.0, "test/accuracy": 0.75, "speed/images_per_second": 1000.0},
            20: {"train/loss": 1.5, "test/accuracy": 0.5, "speed/images_per_second": 3000.0},
        },
        starts=2,
    )
    second = make_workdir("<b>&c", {10: {"train/loss": None, "test/accuracy": 0.6}}, lr=None)
    third = make_workdir("d", {})
    read = runs.read_all([first, second, third])
    assert cells(*tables.summary(read)) == [
        [
            "run", "step", "training loss", "test: accuracy", "best", "images/s", "devices",
            "commit", "started",
        ],
        [
            "a", "20 of 30", "1.500", "50.00%", "<b>75.00% at 10</b>", "2,000", "8 × TPU v5 lite",
            "01234567+", "2026-01-01 10:00, 2 starts",
        ],
        ["&lt;b&gt;&amp;c", "10", "not finite", "<b>60.00%</b>", "60.00% at 10", *"––––"],
        [
            "d", "nothing logged yet", "–", "–", "–", "–", "8 × TPU v5 lite", "01234567+",
            "2026-01-01 10:00",
        ],
    ]  # fmt: skip


def test_only_fields_that_differ_are_shown(make_workdir):
    rows = {1: {"x": 1.0}}
    lrs = {"a": 0.1, "b": 0.3, "c": None}
    read = runs.read_all([make_workdir(name, rows, lr=lr) for name, lr in lrs.items()])
    assert tables.differing_fields(read) == ["optim.lr"]
    by_run = [["run", "optim.lr"], ["a", "0.1"], ["b", "0.3"], ["c", "–"]]
    assert cells(*tables.differences(read)) == by_run
    same = dict(cells([], tables.same_fields(read))[1:])
    assert same["input.batch_size"] == "10" and "optim.lr" not in same
    assert tables.differences(read[:1]) is None


def test_many_fields_are_rows(make_workdir):
    read = runs.read_all([make_workdir(name, {1: {"x": 1.0}}) for name in "ab"])
    other = read[1]._replace(fields={**read[1].fields, "seed": "1", "new": "2", "optim.lr": "3"})
    assert cells(*tables.differences([read[0], other])) == [
        ["field", "a", "b"], ["optim.lr", "0.1", "3"], ["seed", "0", "1"], ["new", "–", "2"],
    ]  # fmt: skip
