import io
import sys
import types

import numpy as np
import pytest
from etils import epath
from PIL import Image

from tests.learning.loggers.one_row import end_with
from tests.messages import refused
from vit_jax.core.errors import NonFiniteError, Preempted, UserError
from vit_jax.learning.histograms import Histogram
from vit_jax.learning.loggers.weights_and_biases import WeightsAndBiases
from vit_jax.train import train

PROJECT = "log.wandb_project=vit"


class FakeRun:
    """Records the calls to the package's run."""

    def __init__(self, folder):
        self.dir, self.rows, self.metrics, self.ends = folder, [], {}, []

    def define_metric(self, name, step_metric=None):
        self.metrics[name] = step_metric

    def log(self, row):
        self.rows.append(row)

    def mark_preempting(self):
        self.ends.append("preempting")

    def finish(self, exit_code):
        self.ends.append(exit_code)


@pytest.fixture
def started(monkeypatch):
    """Replaces the package; [(arguments of init, run)] of all runs."""
    runs = []

    def init(**arguments):
        runs.append((arguments, FakeRun(arguments["dir"])))
        return runs[-1][1]

    wandb = types.ModuleType("wandb")
    wandb.init, wandb.Settings = init, dict
    wandb.errors = types.SimpleNamespace(Error=type("Error", (Exception,), {}))
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    return runs


def test_a_run_and_its_continuation_are_one_wandb_run(tmp_path, tiny_run, started):
    end_with(tiny_run(PROJECT), tmp_path, Preempted("Stopped"))
    end_with(tiny_run(PROJECT, "log.every_steps=2"), tmp_path, None, start_step=1)
    (first, before), (second, after) = started
    assert first["project"] == "vit"
    assert first["id"] == second["id"]
    assert (first["resume"], second["resume"]) == ("allow", "allow")
    assert second["config"]["log"]["every_steps"] == 2
    assert second["config"]["optim"]["lr"] == 1e-3
    assert second["allow_val_change"]
    assert before.metrics["*"] == "step"
    assert before.rows == [{"step": 1, "train/loss": 0.25}]
    assert after.rows == [{"step": 2, "train/loss": 0.25}]
    assert before.ends == ["preempting", 75]
    assert after.ends == [0]


@pytest.mark.parametrize(
    ("error", "status"), [(UserError("x"), 1), (NonFiniteError("x"), 2), (OSError("x"), 2)]
)
def test_the_wandb_run_ends_with_an_error_here(tmp_path, tiny_run, started, error, status):
    end_with(tiny_run(PROJECT), tmp_path, error)
    assert started[0][1].ends == [status]


def test_without_the_package_nothing_starts(tmp_path, tiny_run, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with refused("log.wandb_project"):
        train(tiny_run(PROJECT), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.fixture
def wandb_off_line(monkeypatch):
    """The real package; teardown waits for its files."""
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    return wandb


def test_a_real_offline_run(tmp_path, tiny_run, wandb_off_line):
    end_with(tiny_run(PROJECT), tmp_path, None)
    end_with(tiny_run(PROJECT, "log.every_steps=2"), tmp_path, Preempted("Stopped"), start_step=1)
    wandb_off_line.teardown()
    run_id = (tmp_path / "wandb_id.txt").read_text().strip()
    files = list(tmp_path.glob(f"wandb/offline-run-*-{run_id}/run-{run_id}.wandb"))
    assert files
    for file in files:
        content = file.read_bytes()
        assert b"train/loss" in content
        assert b"0.25" in content
        assert b"warmup_steps" in content
        assert "'wandb_project': 'vit'" in (file.parent / "files" / "config.py").read_text()


def test_histograms_and_pictures_of_a_real_run(tmp_path, wandb_off_line):
    writer = WeightsAndBiases(epath.Path(tmp_path), project="vit", config={})
    writer.write_histograms(3, {"gradients/x": Histogram(np.array([7654, 2]), np.arange(3.0))})
    png = io.BytesIO()
    Image.new("RGB", (3, 2)).save(png, "PNG")
    writer.write_pictures(3, {"look/filters": png.getvalue()})
    writer.close(None)
    wandb_off_line.teardown()
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    content = file.read_bytes()
    assert b"gradients/x" in content
    assert b"7654" in content
    assert b"look/filters" in content
    (_,) = tmp_path.rglob("media/images/look/filters_*.png")
