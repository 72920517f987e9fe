import json
import math

import pytest
from etils import epath

from vit_jax.sweep import progress
from vit_jax.sweep.grid import Point
from vit_jax.sweep.progress import PointProgress

POINT = Point(1, {"seed": "0"}, {})
CONFIG = {"input": {"batch_size": 100}, "evals": {"test": {"split": "test"}}}


@pytest.fixture
def look(tmp_path):
    """`look(rows, saved=(10,))`: at a work directory with these rows of metrics."""

    def look(rows, saved=(), running=False):
        document = {"config": CONFIG, "fingerprint": {}, "runs": [{"total_steps": 40}]}
        (tmp_path / "config.json").write_text(json.dumps(document))
        lines = [json.dumps(row) + "\n" for row in rows]
        (tmp_path / "metrics.jsonl").write_text("".join(lines))
        for step in saved:
            (tmp_path / "checkpoints" / str(step)).mkdir(parents=True)
        return progress.look(POINT, epath.Path(tmp_path), running=running)

    return look


def row(step, **numbers):
    return {"step": step, "train/loss": 1.0, "speed/images_per_second": 200.0} | numbers


def test_finished_is_the_last_step_saved_and_evaluated(look):
    last = row(40, **{"test/accuracy": 0.9})
    assert look([row(20)], saved=[20]).state == "waiting"
    assert look([row(20), last], saved=()).state == "waiting"
    assert look([row(20), row(40)], saved=[40]).state == "waiting"
    assert look([row(20), last]).state == "finished"


def test_time_comes_from_the_rows(look):
    found = look([row(10), row(20), row(20, **{"test/loss": 1.0})], running=True)
    assert (found.state, found.step, found.total_steps) == ("running", 20, 40)
    assert found.train_secs == pytest.approx(2 * 10 * 100 / 200)
    assert found.left_secs == pytest.approx(20 * 100 / 200)


def test_a_failure_is_kept_until_it_is_forgotten(look, tmp_path):
    folder = epath.Path(tmp_path)
    progress.write_failure(folder, 1, "bad images")
    found = look([row(20)])
    assert (found.state, found.reason) == ("failed", "bad images")
    assert look([row(20)], running=True).state == "running"
    progress.forget_failure(folder)
    assert look([row(20)]).state == "waiting"


def test_an_empty_folder_waits(tmp_path):
    found = progress.look(POINT, epath.Path(tmp_path / "none"))
    assert (found.state, found.step) == ("waiting", 0)
    assert math.isnan(found.left_secs)


@pytest.mark.parametrize(
    ("keys", "metric"),
    [
        (["train/loss", "test_ema/accuracy", "test/loss", "test/accuracy"], "test/accuracy"),
        (["train/loss", "val/loss", "val/other"], "val/loss"),
        (["train/loss", "speed/mfu"], "train/loss"),
        ([], "train/loss"),
    ],
)
def test_the_metric_is_chosen_from_what_is_there(keys, metric):
    found = PointProgress(POINT, epath.Path("x"), numbers=dict.fromkeys(keys, 1.0))
    assert progress.choose_metric([found]) == metric


def test_losses_are_better_low():
    assert progress.is_better_high("test/accuracy")
    assert not progress.is_better_high("test/loss")
    assert not progress.is_better_high("test/top5_error")
