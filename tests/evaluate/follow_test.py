"""Following a run: each checkpoint once, across kills, until its end or that of its folder."""

import json
import shutil
import threading

import pytest
from etils import epath

from tests.conftest import TINY_RUN
from tests.messages import refused
from vit_jax import config as configs
from vit_jax.core.screen import Screen
from vit_jax.evaluate.follow import follow
from vit_jax.store import runs
from vit_jax.store.metrics import FOLLOWED_FILE
from vit_jax.train import train

STEPS = (2, 4, 6)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("followed") / "run"
    train(configs.resolve(TINY_RUN, ["checkpoint.every_steps=2", "checkpoint.keep_last=3"]), folder)
    return folder


@pytest.fixture
def run(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    return epath.Path(tmp_path / "run")


def scores(seen):
    def evaluate(checkpoint):
        seen.append(int(checkpoint.name))
        return {"test/accuracy": seen[-1] / 10}

    return evaluate


def test_what_was_evaluated_is_not_again_and_the_report_has_it(run):
    seen = []

    def killed(checkpoint):
        if len(seen) == 1:
            raise KeyboardInterrupt
        return scores(seen)(checkpoint)

    with pytest.raises(KeyboardInterrupt):
        follow(run, killed, Screen())
    with (run / FOLLOWED_FILE).open("a") as file:  # cut short, as a kill may leave a row
        file.write('{"step": 4, "test/acc')
    follow(run, scores(seen), Screen())
    assert seen == list(STEPS)
    follow(run, scores(seen), Screen())
    assert seen == list(STEPS)
    rows = [json.loads(line) for line in (run / FOLLOWED_FILE).read_text().splitlines()]
    assert rows == [{"step": step, "test/accuracy": step / 10} for step in STEPS]
    series = runs.read(run, "run").series["test/accuracy"]
    assert series == runs.Series(list(STEPS), [0.2, 0.4, 0.6])


def test_waits_for_the_last_step_and_leaves_out_what_the_run_deletes(run, tmp_path, capsys):
    last = run / "checkpoints" / "6"
    last.rename(tmp_path / "6")
    seen, steps = [], scores([])
    threading.Timer(0.3, lambda: (tmp_path / "6").rename(last)).start()

    def once(checkpoint):
        seen.append(int(checkpoint.name))
        if seen[-1] == 4:
            shutil.rmtree(checkpoint)
            raise FileNotFoundError(checkpoint)
        return steps(checkpoint)

    follow(run, once, Screen(), poll_secs=0.05)
    assert seen == list(STEPS)
    assert "step 4" in capsys.readouterr().out


def test_a_run_that_is_deleted_is_one_message(run, tmp_path):
    def deleted(checkpoint):
        shutil.rmtree(run)
        raise FileNotFoundError(checkpoint)

    with refused("--follow", "no longer"):
        follow(run, deleted, Screen())
    assert not run.exists()
    with refused("--follow", "config.json"):
        follow(epath.Path(tmp_path / "absent"), deleted, Screen())


@pytest.mark.slow
def test_the_command_follows_and_ends(finished, run_python):
    overrides = (
        "--config.evals.test.split=test",
        "--config.evals.test.preprocess=decode|resize(8)",
    )
    command = ("-m", "vit_jax", "evaluate", f"--follow={finished}", *overrides)
    done = run_python(*command)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (finished / FOLLOWED_FILE).read_text().splitlines()]
    assert [row["step"] for row in rows] == list(STEPS)
    assert all(0 <= row["test/accuracy"] <= 1 for row in rows)
    again = run_python(*command)
    assert again.returncode == 0 and "test" not in again.stdout
    for refusing in (f"--checkpoint={finished}", "--json"):
        assert run_python(*command, refusing).returncode == 1
