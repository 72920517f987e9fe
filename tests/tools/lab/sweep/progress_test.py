import io
import json
import types

import pytest
from etils import epath

from vit_jax.tools.lab.sweep import progress
from vit_jax.tools.lab.sweep.grid import Point
from vit_jax.tools.lab.sweep.progress import PointProgress

POINT = Point(1, {"seed": "0"}, {})
CONFIG = {"input": {"batch_size": 100}, "evals": {"test": {"split": "test"}}}
EARLY = {"metric": "test/loss", "mode": None, "patience": 1, "min_delta": 0.0}


@pytest.fixture
def look(tmp_path):
    """`look(rows, saved=(10,))`: progress of a work directory with these rows of metrics."""

    def look(rows, saved=(), running=False, **more):
        document = {"config": CONFIG | more, "fingerprint": {}, "runs": [{"total_steps": 40}]}
        (tmp_path / "config.json").write_text(json.dumps(document))
        lines = [json.dumps(row) + "\n" for row in rows]
        (tmp_path / "metrics.jsonl").write_text("".join(lines))
        for step in saved:
            (tmp_path / "checkpoints" / str(step)).mkdir(parents=True)
        return progress.read_row(POINT, epath.Path(tmp_path), running=running)

    return look


def row(step, **numbers):
    return {"step": step, "train/loss": 1.0, "speed/images_per_second": 200.0} | numbers


def test_finished_is_the_last_step_saved_and_evaluated(look):
    last = row(40, **{"test/accuracy": 0.9})
    assert look([row(20)], saved=[20]).state == "waiting"
    assert look([row(20), last], saved=()).state == "waiting"
    assert look([row(20), row(40)], saved=[40]).state == "waiting"
    assert look([row(20), last]).state == "finished"


def test_a_run_that_stopped_early_is_finished(look):
    rows = [row(10, **{"test/loss": 1.0}), row(20, **{"test/loss": 2.0})]
    assert look(rows, early_stopping=EARLY).state == "waiting"
    assert look(rows[:1], saved=[20], early_stopping=EARLY).state == "waiting"
    assert look(rows, early_stopping=EARLY).state == "finished"
    assert look(rows, early_stopping=EARLY | {"patience": 2}).state == "waiting"
    assert look(rows).state == "waiting"


def test_a_failure_is_kept_until_it_is_forgotten(look, tmp_path):
    folder = epath.Path(tmp_path)
    progress.write_failure(folder, 1, "bad images")
    point = look([row(20)])
    assert (point.state, point.reason) == ("failed", "bad images")
    assert look([row(20)], running=True).state == "running"
    progress.forget_failure(folder)
    assert look([row(20)]).state == "waiting"


@pytest.mark.parametrize(
    ("keys", "metric"),
    [
        (["train/loss", "test_ema/accuracy", "test/loss", "test/accuracy"], "test/accuracy"),
        (["train/loss", "val/loss", "val/other"], "val/loss"),
        (["train/loss", "speed/mfu"], "train/loss"),
        ([], "train/loss"),
    ],
)
def test_the_metric_is_chosen_from_those_logged(keys, metric):
    point = PointProgress(POINT, epath.Path("x"), numbers=dict.fromkeys(keys, 1.0))
    assert progress.choose_metric([point]) == metric


# The screen.

NUMBERS = {"train/loss": 0.5, "test/accuracy": 0.9, "speed/images_per_second": 1610.4}


@pytest.fixture
def shown_row(tmp_path):
    def row(number, state, **fields):
        point = Point(number, {"seed": str(number)}, {})
        return PointProgress(point, epath.Path(tmp_path / point.name), state, **fields)

    return row


def test_events_and_now_and_then_a_summary_are_lines(shown_row, monkeypatch):
    out = io.StringIO()
    shown = progress.Reporter([shown_row(1, "waiting")], None, out)
    shown.refresh()
    assert out.getvalue() == ""
    shown.tell(shown.rows[1].point, "failed", "bad images")
    assert out.getvalue().endswith("failed     seed=1: bad images\n")
    monkeypatch.setattr(progress.Reporter, "EVERY_SECS", 0.0)
    shown.refresh()
    assert out.getvalue().endswith("1 point: 1 waiting\n")
    shown.tell(shown.rows[1].point, "submitted")
    shown.refresh()
    assert out.getvalue().endswith("1 point: 1 submitted\n")
    out.close()

    def closed(*_):
        raise BrokenPipeError

    shown = progress.Reporter([], None, types.SimpleNamespace(write=closed, flush=closed))
    shown.say("nobody listens")
