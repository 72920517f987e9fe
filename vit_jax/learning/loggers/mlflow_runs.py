"""Optional logging to MLflow; its own variables apply, such as MLFLOW_TRACKING_URI."""

import functools
import io
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from etils import epath
from PIL import Image

from vit_jax.core.errors import Preempted, UserError, writing
from vit_jax.core.files import write_file
from vit_jax.learning.histograms import Histogram
from vit_jax.store import workdir as workdirs

ID_FILE = "mlflow_run_id.txt"
RETRIES, FEW = "MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2"  # seconds, not the minutes of its own seven
PATIENCE_SECS = 240.0  # for a row, as mlflow's own seven, but never when the run ends
MOST_PARAMS = 100  # in one request
LONGEST_PARAM = 6000  # characters of a value


class MLflow:
    """The MLflow run of a work directory in an experiment; a resumed run continues the same one.

    Rows are sent by a thread, which waits for a server that is away. What it does not take is told
    once and left out: the numbers are in metrics.jsonl, and that is no reason to end a training.
    """

    def __init__(
        self, workdir: epath.Path, *, experiment: str, config: Mapping[str, Any], program: str = ""
    ):
        self._mlflow = _mlflow()
        self._told, self._ends = False, threading.Event()
        os.environ.setdefault(RETRIES, FEW)  # read at each request
        cure = "Set MLFLOW_TRACKING_URI, or no log.mlflow_experiment."
        with writing("log.mlflow_experiment", experiment, cure=cure):
            self._client = self._mlflow.MlflowClient()
            self._run_id = self._begin(workdir, experiment)
            self._write_params(config)
        self._thread = ThreadPoolExecutor(1, "mlflow")
        if program:
            self._later(lambda: self._client.log_text(self._run_id, program, "config.py"))

    def _begin(self, workdir: epath.Path, experiment: str) -> str:
        """The id of the run, which is running from now on."""
        file = workdir / ID_FILE
        if file.exists():
            run_id = file.read_text().strip()
            self._client.update_run(run_id, status="RUNNING")
            return run_id
        there = self._client.get_experiment_by_name(experiment)
        number = there.experiment_id if there else self._client.create_experiment(experiment)
        run_id = str(self._client.create_run(number, run_name=workdir.name).info.run_id)
        write_file(file, run_id + "\n")
        return run_id

    def _write_params(self, config: Mapping[str, Any]) -> None:
        """The config as parameters; what has changed since as tags, parameters may not change."""
        entities = self._mlflow.entities
        fields = {k: v[:LONGEST_PARAM] for k, v in workdirs.flatten(dict(config)).items()}
        before = self._client.get_run(self._run_id).data.params
        new = [entities.Param(k, v) for k, v in fields.items() if k not in before]
        changed = {k: v for k, v in fields.items() if before.get(k, v) != v}
        for start in range(0, len(new), MOST_PARAMS):
            self._client.log_batch(self._run_id, params=new[start : start + MOST_PARAMS])
        for name, value in changed.items():
            self._client.set_tag(self._run_id, f"resumed.{name}", value)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        now, metric = int(1000 * time.time()), self._mlflow.entities.Metric
        row = [metric(name, float(value), now, step) for name, value in values.items()]
        self._later(lambda: self._client.log_batch(self._run_id, metrics=row))

    def write_histograms(self, step: int, histograms: Mapping[str, Histogram]) -> None:
        """Nothing: MLflow has no histograms."""

    def write_pictures(self, step: int, pictures: Mapping[str, bytes]) -> None:
        log_image = self._client.log_image
        for name, png in pictures.items():
            image, key = Image.open(io.BytesIO(png)), name.replace("/", ".")
            self._later(functools.partial(log_image, self._run_id, image, key=key, step=step))

    def close(self, error: BaseException | None) -> None:
        """Ends the run: finished, failed, or killed, which a resumed run takes back.

        Sends all rows that are left, unless the server is away.
        """
        ended = "KILLED" if isinstance(error, Preempted) else "FAILED"
        status = "FINISHED" if error is None else ended
        self._later(lambda: self._client.set_terminated(self._run_id, status))
        self._ends.set()
        self._thread.shutdown()

    def _later(self, send: Callable[[], Any]) -> None:
        def send_patiently() -> None:
            until = time.monotonic() + PATIENCE_SECS
            while time.monotonic() < until:
                try:
                    send()
                    return
                except Exception as error:  # of the network, the server, its disk ...
                    away = isinstance(error, self._mlflow.MlflowException) and (
                        error.get_http_status_code() >= 500
                    )
                    if not self._told:
                        self._told = True
                        message = f"MLflow did not take a row, and may miss more: {error}"
                        print(message, file=sys.stderr)
                if not away:  # it does not want this row
                    return
                if self._ends.wait(1):
                    self._thread.shutdown(wait=False, cancel_futures=True)
                    return

        self._thread.submit(send_patiently)


def check_experiment(experiment: str) -> None:
    """Raises UserError if an experiment cannot have this name, or mlflow is not installed."""
    if not experiment.strip():
        raise UserError(f"log.mlflow_experiment={experiment!r}: give a name.")
    _mlflow()


def _mlflow() -> Any:
    with writing("log.mlflow_experiment", cure="pip install mlflow."):
        import mlflow
        import mlflow.entities
    return mlflow
