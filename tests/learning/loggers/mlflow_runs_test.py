"""Runs in MLflow: by the real package with a store in a file, and by a stand-in."""

import io
import sys
import threading
import types

import pytest
from etils import epath
from PIL import Image

from tests.learning.loggers.one_row import end_with
from tests.messages import refused
from vit_jax.core.errors import NonFiniteError, Preempted, UserError
from vit_jax.learning.loggers.mlflow_runs import MLflow
from vit_jax.run.parts import outputs
from vit_jax.train import train

EXPERIMENT = "log.mlflow_experiment=vit"


class Client:
    """The package's client, with runs in memory."""

    def __init__(self, store):
        self.store = store

    def get_experiment_by_name(self, name):
        there = name in self.store.experiments
        return types.SimpleNamespace(experiment_id=name) if there else None

    def create_experiment(self, name):
        self.store.experiments.append(name)
        return name

    def create_run(self, experiment, run_name):
        run_id = f"run{len(self.store.runs)}"
        self.store.runs[run_id] = types.SimpleNamespace(
            name=run_name, experiment=experiment, params={}, metrics=[], tags={}, texts={},
            status=["RUNNING"],
        )  # fmt: skip
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id=run_id))

    def get_run(self, run_id):
        return types.SimpleNamespace(data=self.store.runs[run_id])

    def update_run(self, run_id, status):
        self.store.runs[run_id].status.append(status)

    set_terminated = update_run

    def set_tag(self, run_id, name, value):
        self.store.runs[run_id].tags[name] = value

    def log_text(self, run_id, text, file):
        self.store.runs[run_id].texts[file] = text

    def log_image(self, run_id, image, key, step):
        """Takes it."""

    def log_batch(self, run_id, metrics=(), params=()):
        if metrics and self.store.away:
            self.store.away -= 1
            raise sys.modules["mlflow"].MlflowException("the server is away")
        assert len(params) <= 100
        self.store.runs[run_id].params |= dict(params)
        self.store.runs[run_id].metrics += [(name, value, step) for name, value, _, step in metrics]


@pytest.fixture
def store(monkeypatch):
    """Replaces the package; its runs."""
    store = types.SimpleNamespace(experiments=[], runs={}, away=0)
    mlflow, entities = types.ModuleType("mlflow"), types.ModuleType("mlflow.entities")
    entities.Param, entities.Metric = (lambda k, v: (k, v)), (lambda *values: values)
    mlflow.entities, mlflow.MlflowClient = entities, lambda: Client(store)
    status = {"get_http_status_code": lambda self: 500}
    mlflow.MlflowException = type("MlflowException", (Exception,), status)
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    return store


def test_a_run_and_its_continuation_are_one_mlflow_run(tmp_path, tiny_run, store):
    end_with(tiny_run(EXPERIMENT), tmp_path, Preempted("Stopped"))
    end_with(tiny_run(EXPERIMENT, "log.every_steps=2"), tmp_path, None, start_step=1)
    (run,) = store.runs.values()
    assert (run.name, run.experiment) == (tmp_path.name, "vit")
    assert run.metrics == [("train/loss", 0.25, 1), ("train/loss", 0.25, 2)]
    assert run.params["optim.lr"] == "0.001"
    assert run.params["log.every_steps"] == "1"
    assert run.tags == {"resumed.log.every_steps": "2"}
    assert "vit_jax.load_config(" in run.texts["config.py"]
    assert run.status == ["RUNNING", "KILLED", "RUNNING", "FINISHED"]


@pytest.mark.parametrize("error", [UserError("x"), NonFiniteError("x"), OSError("x")])
def test_the_mlflow_run_fails_with_the_run(tmp_path, tiny_run, store, error):
    end_with(tiny_run(EXPERIMENT), tmp_path, error)
    assert store.runs["run0"].status == ["RUNNING", "FAILED"]


def test_a_server_that_is_away_ends_no_training(tmp_path, tiny_run, store, capsys):
    store.away = 10**9
    train(tiny_run(EXPERIMENT, "total.steps=3", "log.first_batch=2"), tmp_path / "run")
    assert capsys.readouterr().err.count("MLflow did not take a row") == 1
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 3


def test_a_server_that_has_gone_holds_up_the_end_of_a_run_for_one_row(tmp_path, store, monkeypatch):
    tried, ends = [], threading.Event()

    def gone(self, run_id, metrics=(), params=()):
        tried.extend(step for *_, step in metrics)
        if metrics:
            ends.wait()
            raise sys.modules["mlflow"].MlflowException("the server is away")

    monkeypatch.setattr(Client, "log_batch", gone)
    logger = MLflow(epath.Path(tmp_path), experiment="vit", config={})
    for step in range(1, 10):
        logger.write(step, {"train/loss": 1.0})
    threading.Timer(0.5, ends.set).start()  # while `close` waits
    logger.close(None)
    assert tried == [1]
    assert store.runs["run0"].status == ["RUNNING"]


def test_without_the_package_nothing_starts(tmp_path, tiny_run, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with refused("log.mlflow_experiment"):
        train(tiny_run(EXPERIMENT), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_real_store_in_a_file(tmp_path, tiny_run, monkeypatch):
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("alembic")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    workdir = tmp_path / "run"
    workdir.mkdir()
    end_with(tiny_run(EXPERIMENT), workdir, Preempted("Stopped"))
    png = io.BytesIO()
    Image.new("RGB", (4, 4)).save(png, "PNG")
    config = tiny_run(EXPERIMENT, "log.every_steps=2")
    with outputs.log(config, workdir, start_step=1) as log:
        log.write(2, {"train/loss": 0.5, "test/accuracy": float("nan")}, {"own/a": png.getvalue()})
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("vit").experiment_id
    (run,) = client.search_runs([experiment])
    assert (run.info.run_name, run.info.status) == ("run", "FINISHED")
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(m.step, m.value) for m in history] == [(1, 0.25), (2, 0.5)]
    assert run.data.params["optim.lr"] == "0.001"
    assert run.data.tags["resumed.log.every_steps"] == "2"
    text = mlflow.artifacts.load_text(f"{run.info.artifact_uri}/config.py")
    assert "'mlflow_experiment': 'vit'" in text
    assert any(each.path.startswith("images") for each in client.list_artifacts(run.info.run_id))
