"""Training from Python: the same run as the commands', interrupted and continued."""

import signal

import numpy as np
import pytest
from PIL import Image

import vit_jax
from tests.conftest import TINY_RUN
from tests.messages import refused
from vit_jax import config as configs
from vit_jax.core.schema import strict
from vit_jax.learning import loggers as run_log

EVAL = {"test": {"split": "test", "preprocess": "decode|resize(8)"}}


def test_configs_are_laid_over_each_other():
    config = vit_jax.load_config(TINY_RUN, "optim.lr=2e-3", total={"epochs": 20}, evals=EVAL)
    assert (config.optim.lr, config.total.steps, config.total.epochs) == (2e-3, None, 20)
    assert TINY_RUN["total"] == {"steps": 6}
    again = vit_jax.load_config(config, seed=1, evals={"test": None})
    assert (again.seed, again.evals, again.optim.lr) == (1, {}, 2e-3)
    assert configs.to_dict(vit_jax.load_config(config)) == configs.to_dict(config)
    with refused("optim.lrr"):
        vit_jax.load_config(TINY_RUN, optim={"lrr": 1})


def test_a_config_is_shown_as_the_program_that_makes_it_again():
    config = vit_jax.load_config(TINY_RUN, "optim.grad_clip_norm=none", evals=EVAL)
    assert eval(repr(config)) == config
    lines = repr(config).splitlines()
    assert lines[0] == "vit_jax.load_config({"
    assert "        'grad_clip_norm': None," in lines
    assert repr(vit_jax.load_config({})) == "vit_jax.load_config({})"
    kinds = {
        "method": {"kind": "mae", "decoder_depth": 1},
        "evals": {"shots": {"kind": "frozen", "split": "test[:9]"}, "plain": {}},
    }
    config = vit_jax.load_config(kinds)
    assert eval(repr(config)) == config
    assert strict.differing(config) == kinds


def test_errors_name_arguments_and_fields(tmp_path):
    with refused("evals.NAME=none"):
        vit_jax.load_config(TINY_RUN, evals=3)
    with refused("total.steps=VALUE"):
        vit_jax.load_config({"total": {"steps": 1, "epochs": 2}})
    run = vit_jax.Run(vit_jax.load_config(TINY_RUN, total={"steps": 3}), tmp_path / "run")
    run.fit()
    with refused("top_k=0") as told:
        run.predict("docs/digits", top_k=0)
    assert "--" not in str(told.value)
    with refused("allow_config_change=True", "another workdir", "init.weights=") as told:
        vit_jax.Run(vit_jax.load_config(TINY_RUN, seed=1), run.workdir).fit()
    assert "--" not in str(told.value)


def test_paths_in_errors_stay(tmp_path):
    with refused("no--ema/vit-jax.py"):
        vit_jax.load_config(tmp_path / "no--ema" / "vit-jax.py")
    run = vit_jax.Run(vit_jax.load_config(TINY_RUN), tmp_path / "run")
    with refused("loggers='printed'"):
        run.fit(loggers="printed")


@pytest.mark.parametrize("folder", ["", "memory://x", "file:///tmp/x", "run@200", "runs/a@best"])
def test_a_work_directory_that_is_no_folder(folder):
    with refused(folder or "workdir is empty") as told:
        vit_jax.Run(vit_jax.load_config(TINY_RUN), folder)
    assert "--" not in str(told.value)
    with refused():
        vit_jax.Run.open(folder)


def test_fits_evaluates_predicts_and_goes_on(tmp_path, monkeypatch):
    run = vit_jax.Run(vit_jax.load_config(TINY_RUN, evals=EVAL), tmp_path / "run")
    assert (run.step, run.metrics()) == (0, [])
    write = run_log.RunLog.write

    def interrupted(log, step, *rest):
        write(log, step, *rest)
        if step == 3:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(run_log.RunLog, "write", interrupted)
    before = signal.getsignal(signal.SIGINT)
    with refused("SIGINT", error=vit_jax.Preempted) as stopped:
        run.fit()
    assert stopped.value._render_traceback_() == [f"Preempted: {stopped.value}"]
    assert signal.getsignal(signal.SIGINT) == before
    assert 3 <= run.step < 6
    monkeypatch.undo()
    done = run.fit()
    assert run.step == 6
    assert run.fit() == done  # finished: nothing changes
    assert [row["step"] for row in run.metrics()] == [1, 2, 3, 4, 5, 6]
    assert vit_jax.Run.open(tmp_path / "run").evaluate()["test/loss"] == done["test/loss"]

    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    file = tmp_path / "a.png"
    Image.fromarray(pixels).save(file)
    ((name, classes),) = run.predict(file, top_k=2)
    assert (name, len(classes)) == (file, 2)
    same = run.predict([pixels, Image.fromarray(pixels)], top_k=2)
    assert same == [(0, classes), (1, classes)]
    assert run.predict(pixels[None], top_k=2) == [(0, classes)]
    with refused():
        run.predict(pixels / 255)


def test_rows_go_to_loggers(tmp_path):
    class Rows(run_log.Logger):
        def __init__(self):
            self.steps, self.error = [], "open"

        def write(self, step, values):
            self.steps.append(step)

        def close(self, error):
            self.error = error

    rows = Rows()
    vit_jax.Run(vit_jax.load_config(TINY_RUN, total={"steps": 3}), tmp_path).fit(loggers=[rows])
    assert (rows.steps, rows.error) == ([1, 2, 3], None)
