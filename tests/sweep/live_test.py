import io
import math
import os

import pytest
from etils import epath

from vit_jax.sweep import live
from vit_jax.sweep.grid import Point
from vit_jax.sweep.progress import PointProgress

NUMBERS = {"train/loss": 0.5, "test/accuracy": 0.9, "speed/images_per_second": 1610.4}


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def row(tmp_path):
    def row(number, state, **fields):
        point = Point(number, {"seed": str(number)}, {})
        return PointProgress(point, epath.Path(tmp_path / point.name), state, **fields)

    return row


def test_the_table_says_how_each_point_is(row):
    half = {"step": 20, "total_steps": 40, "numbers": NUMBERS}
    rows = [
        row(1, "running", **half, left_secs=75.0),
        row(2, "failed", reason="the images are bad\nall of them"),
        row(3, "waiting"),
        row(4, "finished", step=1000, total_steps=1000, numbers=NUMBERS | {"train/loss": math.nan}),
    ]
    lines = live.table(rows, None, most=9)
    assert [line.split() for line in lines] == [
        ["point", "state", "step", "loss", "test/accuracy", "images/s", "left"],
        ["seed=1", "running", "20/40", "0.5", "90.00%", "1,610", "1:15"],
        ["seed=2", "failed", "the", "images", "are", "bad"],
        ["seed=3", "waiting"],
        ["seed=4", "finished", "1,000/1,000", "not", "finite", "90.00%"],
    ]
    assert live.summary(rows) == "4 points: 1 finished, 1 waiting, 1 failed, 1 running"


def test_of_many_points_those_that_run_are_shown(row):
    rows = [row(k, "finished") for k in range(8)] + [row(8, "running"), row(9, "waiting")]
    assert [line.split()[0] for line in live.table(rows, "x", most=3)[1:]] == [
        "seed=0",
        "seed=8",
        "seed=9",
    ]


def test_on_a_terminal_the_table_is_rewritten(row, monkeypatch):
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((40, 24)))
    monkeypatch.setattr(live.Live, "EVERY_SECS", 0.0)
    out = Terminal()
    shown = live.Live({1: row(1, "waiting"), 2: row(2, "waiting")}, None, out)
    shown.refresh(())
    first = out.getvalue()
    assert first.count("\n") == 4
    assert all(len(line) < 40 for line in first.splitlines())
    shown.refresh(())
    assert out.getvalue().removeprefix(first) == "\x1b[4A\r\x1b[J" + first
    before = out.getvalue()
    shown.say("this stays")
    shown.close()
    assert out.getvalue().removeprefix(before) == "\x1b[4A\r\x1b[Jthis stays\n"


def test_without_a_terminal_there_are_lines(row, monkeypatch):
    out = io.StringIO()
    shown = live.Live({1: row(1, "waiting")}, None, out)
    shown.refresh(())
    assert out.getvalue() == ""
    shown.tell(shown.rows[1].point, "failed", "bad images")
    assert out.getvalue().endswith("failed    seed=1: bad images\n")
    monkeypatch.setattr(live.Live, "PLAIN_EVERY_SECS", 0.0)
    shown.refresh(())
    assert out.getvalue().endswith("1 points: 1 waiting\n")
