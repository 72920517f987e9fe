import json
import math
import shutil
import types

import pytest

from tests.messages import refused
from vit_jax.core.errors import Preempted
from vit_jax.evals.early_stopping import stopped
from vit_jax.learning.clock import Cadence, Clock
from vit_jax.run.build import Run
from vit_jax.store import checkpoint_dir
from vit_jax.train import train


@pytest.mark.parametrize(("every_steps", "steps"), [(3, [3, 6, 8]), (0, [8]), (None, [8])])
def test_a_cadence_is_due_at_multiples_and_at_the_end(every_steps, steps):
    due = Cadence(every_steps, total_steps=8)
    assert [s for s in range(9) if due(s)] == steps


def make_clock(monkeypatch, peak_flops=None):
    now, feed = [100.0], types.SimpleNamespace(wait_secs=0.0)
    monkeypatch.setattr("vit_jax.learning.clock.time.perf_counter", lambda: now[0])
    clock = Clock(
        batch_size=32, step_flops=1e9, peak_flops=peak_flops, start_step=10, total_steps=50,
        feed=feed,
    )  # fmt: skip
    return clock, now, feed


def test_speeds_are_measured_since_the_last_tick(monkeypatch):
    clock, now, feed = make_clock(monkeypatch, peak_flops=10e9)
    now[0], feed.wait_secs = 104.0, 1.0
    assert clock.tick(20) == {
        "speed/images_per_second": 80.0,
        "speed/input_wait": 0.25,
        "speed/mfu": 0.25,
    }
    assert clock.eta_secs == 12.0


def test_pauses_do_not_count(monkeypatch):
    clock, now, _ = make_clock(monkeypatch)
    with clock.paused():
        now[0] += 1000
    now[0] += 1
    assert clock.tick(11)["speed/images_per_second"] == 32.0


# --- early stopping: a function of the log, so that interrupted runs end where others do


NAN = math.nan
EVAL = ("evals.test.preprocess=decode|resize(8)", "evals.test.every_steps=2")
# No accuracy is better than the first by more than 1, so the run ends at the third evaluation.
RUN = (
    *EVAL, "evals.late.preprocess=decode|resize(8)", "total.steps=20", "checkpoint.every_steps=4",
    "early_stopping.metric=test/accuracy", "early_stopping.min_delta=1",
    "early_stopping.patience=2", "optim.ema_decay=0.9", "checkpoint.keep_last=9",
)  # fmt: skip
END = 6


@pytest.mark.parametrize(
    ("values", "fields", "expected"),
    [
        ([1, 2, 3, 4], {}, None),
        ([3, 2, 1], {}, (3, 3, 1)),
        ([3, 2, 4, 1, 4, 9], {}, (5, 4, 3)),  # an equal value is no better
        ([3, 2, 1], {"mode": "min"}, None),
        ([1, 2, 0, 2, 3], {"mode": "min"}, (5, 0, 3)),
        ([1, 1.5, 2, 2.5], {"min_delta": 0.75}, None),  # each is compared with the best
        ([1, 1.5, 1.75, 2.5], {"min_delta": 0.75}, (3, 1, 1)),
        ([1, None, NAN, 5], {}, (3, 1, 1)),
        ([NAN, None], {}, (2, None, 0)),
        ([1, 0, 2, 0], {"patience": 1}, (2, 1, 1)),
        ([], {}, None),
    ],
)
def test_where_patience_runs_out(values, fields, expected):
    rules = {"mode": "max", "patience": 2, "min_delta": 0.0} | fields
    assert stopped(enumerate(values, start=1), **rules) == expected


class After:
    """A request to stop that is seen at the n-th look."""

    def __init__(self, looks):
        self.looks, self.seen = looks, 0

    def __bool__(self):
        self.seen += 1
        return self.seen > self.looks


def rows(workdir):
    read = [json.loads(line) for line in (workdir / "metrics.jsonl").open()]
    return [{k: v for k, v in row.items() if not k.startswith("speed/")} for row in read]


def checksums(workdir):
    arrays = checkpoint_dir.read_description(workdir / "checkpoints" / str(END))["arrays"]
    return {name: array["checksum"] for name, array in arrays.items()}


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """Of a run that ended early: its work directory, not to be changed, config and looks."""
    from tests.conftest import TINY_RUN
    from vit_jax import config as configs

    config = configs.resolve(TINY_RUN, RUN)
    workdir = tmp_path_factory.mktemp("ended")
    never = After(10**9)
    train(config, workdir, stop=never)
    return workdir, config, never.seen


@pytest.mark.slow
def test_it_ends_as_after_the_last_step(ended, tmp_path, capsys):
    workdir, config = shutil.copytree(ended[0], tmp_path / "run"), ended[1]
    assert checkpoint_dir.steps(workdir / "checkpoints") == [4, END]
    last = rows(workdir)[-1]
    assert last["step"] == END
    assert {"test/accuracy", "test_ema/accuracy", "late/accuracy", "late_ema/loss"} <= set(last)
    before = (workdir / "metrics.jsonl").read_text()
    assert int(train(config, workdir).step) == END  # the same command again
    assert (workdir / "metrics.jsonl").read_text() == before
    told = capsys.readouterr().out
    assert f"stopped  after {END} of 20 steps: test/accuracy was not better than" in told
    assert f"finished {END} steps\nresult   test: accuracy" in told
    assert "compiled" not in told


@pytest.mark.slow
@pytest.mark.parametrize("left", [1, 2, 4, 20])  # 1 to 4: during the evaluations that end it
def test_an_interrupted_run_ends_at_the_same_step_with_the_same_bits(ended, tmp_path, left):
    with pytest.raises(Preempted):
        train(ended[1], tmp_path, stop=After(ended[2] - left))
    train(ended[1], tmp_path)
    assert checksums(tmp_path) == checksums(ended[0])
    whole = lambda found: {(row["step"], name): x for row in rows(found) for name, x in row.items()}
    assert whole(tmp_path) == whole(ended[0])


def test_a_run_killed_before_its_last_checkpoint_ends_there_again(ended, tmp_path):
    workdir = shutil.copytree(ended[0], tmp_path / "run")
    shutil.rmtree(workdir / "checkpoints" / str(END))
    train(ended[1], workdir)
    assert checksums(workdir) == checksums(ended[0])
    assert rows(workdir) == rows(ended[0])


def test_more_patience_lets_an_ended_run_go_on(ended, tmp_path, tiny_run):
    workdir = shutil.copytree(ended[0], tmp_path / "run")
    train(tiny_run(*RUN, "early_stopping.patience=3"), workdir)
    assert checkpoint_dir.steps(workdir / "checkpoints")[-1] == 8


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("early_stopping.metric=test/acuracy",), "no evaluation. Did you mean 'test/accuracy'"),
        (("early_stopping.metric=test_ema/loss",), "given by no evaluation"),
        (("early_stopping.patience=0",), "early_stopping.patience=0: give at least 1"),
        (("early_stopping.min_delta=-1",), "early_stopping.min_delta=-1.0: give at least 0"),
        (("evals.test.every_steps=none",), "every_steps=None gives 0"),
        (("early_stopping.patience=4",), "gives 4"),
        (("total.steps=8",), "gives 3"),
    ],
)
def test_what_would_never_end_a_run_is_refused(tiny_run, tmp_path, overrides, message):
    base = (*EVAL, "total.steps=9", "early_stopping.metric=test/accuracy", "optim.warmup_steps=1",
            "early_stopping.patience=3")  # fmt: skip
    Run.build(tiny_run(*base), tmp_path / "run")
    with refused(message):
        Run.build(tiny_run(*base, *overrides), tmp_path / "run")
