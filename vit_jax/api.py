"""Training from Python, as the commands do it (docs/python.md).

    config = vit_jax.load_config("vit_digits", "optim.lr=2e-3", total={"epochs": 20})
    run = vit_jax.Run(config, workdir="runs/digits")
    run.fit()

A Run is a handle on a work directory: all that it knows is on disk, and any other process, command
or notebook may go on there.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import jax
import ml_collections
from etils import epath

from vit_jax import config as configs
from vit_jax import weights
from vit_jax.cluster.peers import Peers
from vit_jax.cluster.stop import stop_request
from vit_jax.config import RunConfig
from vit_jax.core import compilation_cache
from vit_jax.core.errors import UserError, UserFacingError
from vit_jax.core.screen import Screen
from vit_jax.core.signals import exit_immediately_on_signal
from vit_jax.evaluate.__main__ import evaluate
from vit_jax.learning.loggers import Logger
from vit_jax.models.images import AnyImage
from vit_jax.predict import Predictor
from vit_jax.run import adapt, environment
from vit_jax.run.folders import check_folders
from vit_jax.store import checkpoint_dir, runs
from vit_jax.store import workdir as workdirs
from vit_jax.store.workdir import read_document, saved_step
from vit_jax.train import train

AnyConfig: TypeAlias = RunConfig | Mapping[str, Any] | ml_collections.ConfigDict | str | Path


def load_config(config: AnyConfig, *overrides: str, **sections: Any) -> RunConfig:
    """The config of a run, every name and type checked.

    Args:
      config: as for --config, such as "configs/finetune.py:cifar10"; or nested fields, in a
        dictionary or ConfigDict; or another config.
      *overrides: "optim.lr=2e-3", as on the command line; they come last.
      **sections: nested fields over those of `config`: total={"epochs": 20}, seed=1. None takes an
        evaluation out: evals={"test": None}.

    Raises:
      UserError: no such file; a field that is unknown, misspelt, mistyped or out of bounds; or
        weights or data that a recipe adapts to cannot be read.
    """
    with _one_message():
        if isinstance(config, str | Path):
            return adapt.load(str(config), overrides, sections=sections, check=check_folders)
        values = configs.to_dict(config) if isinstance(config, RunConfig) else config
        return configs.resolve(configs.overlaid(values, sections), overrides)


class Run:
    """A run in a work directory: trains, evaluates, predicts, by the code of the commands.

    Args:
      config: what `load_config` gives or takes.
      workdir: where its checkpoints and logs are, or will be: a local folder, or gs://...

    Raises UserError for a wrong config; whether data and folder are right is seen by `fit`.
    """

    def __init__(self, config: AnyConfig, workdir: epath.PathLike) -> None:
        self.config = config if isinstance(config, RunConfig) else load_config(config)
        with _one_message():
            self.workdir = workdirs.named(workdir)
        self._predictor: tuple[tuple[str, bool], Predictor] | None = None

    @classmethod
    def open(cls, workdir: epath.PathLike) -> Run:
        """The run that is in a work directory, by the config that is recorded there."""
        with _one_message():
            folder = workdirs.named(workdir)
            return cls(read_document(folder)["config"], folder)

    def __repr__(self) -> str:
        return f"<Run in {self.workdir}, at step {self.step:,}>"

    @property
    def step(self) -> int:
        """The step of the newest checkpoint; 0 if there is none."""
        return saved_step(self.workdir)

    def fit(
        self, *, allow_config_change: bool = False, loggers: Sequence[Logger] = ()
    ) -> dict[str, float]:
        """Trains to the end, from where the work directory is; returns the last row of the log.

        An interrupt (Ctrl-C, a notebook's stop button), SIGTERM, SIGHUP or SIGUSR1 saves after the
        step that is under way, and raises Preempted; call it again to go on. A second interrupt
        ends it at once. Outside the main thread, where Python sees no signals, nothing interrupts.

        Args:
          allow_config_change: go on although the config differs from the one it began with.
          loggers: get the rows of the log as they are written; see docs/plugins.md.

        Raises:
          UserError: config, data, weights or work directory are wrong.
          NonFiniteError: a loss or gradient is NaN or infinite.
          Preempted: it was interrupted; the state is saved.
        """
        with _one_message(), exit_immediately_on_signal("before anything was begun."):
            if not all(callable(getattr(logger, "write", None)) for logger in loggers):
                raise UserError(
                    f"loggers={loggers!r} are not objects with `write` (docs/plugins.md)."
                )
            self._prepare()
            check_folders(self.config, self.workdir)
        self._predictor = None
        with _one_message(), stop_request(Peers.alone(), exits=False) as stop:
            options: dict[str, Any] = {"stop": stop, "loggers": loggers}
            train(self.config, self.workdir, allow_config_change=allow_config_change, **options)
        last = self.metrics()[-1:]
        return {name: x for row in last for name, x in row.items() if name != "step"}

    def evaluate(
        self,
        config: AnyConfig | None = None,
        *,
        step: int | Literal["best"] | None = None,
        ema: bool = False,
    ) -> dict[str, float]:
        """Evaluates a checkpoint; returns numbers as "test/accuracy".

        Args:
          config: whose evaluations to run; default: the run's own.
          step: of the checkpoint, or "best" (checkpoint.best_metric); default: the newest one.
          ema: evaluates the EMA of the weights, where the run keeps one.
        """
        by = self.config if config is None else load_config(config)
        with _one_message(), contextlib.closing(Screen()) as screen:
            self._prepare()
            return evaluate(by, self._checkpoint(step), screen, ema=ema)

    def predict(
        self,
        images: AnyImage | Sequence[AnyImage],
        *,
        top_k: int = 5,
        step: int | Literal["best"] | None = None,
        ema: bool = False,
        on_bad_image: Literal["fail", "skip"] = "fail",
    ) -> list[tuple[Path | int, list[dict[str, Any]]]]:
        """Classifies images; no TensorFlow is needed.

        Args:
          images: paths of files and folders, Pillow's images, or uint8 arrays [H, W, 3]; one of
            them, or several, also as an array [N, H, W, 3].
          top_k: how many classes to name.
          step: of the checkpoint, or "best" (checkpoint.best_metric); default: the newest one.
          ema: uses the EMA of the weights, where the run keeps one.
          on_bad_image: "skip" names images that cannot be read on standard error and leaves them
            out; "fail" raises.

        Returns:
          For each image its file, or its place in `images`, and its classes, most likely first:
          {"class": 3, "name": "cat", "probability": 0.97}.
        """
        with _one_message():
            self._prepare()
            checkpoint = str(self._checkpoint(step))
            if self._predictor is None or self._predictor[0] != (checkpoint, ema):
                self._predictor = (checkpoint, ema), Predictor(checkpoint, ema=ema)
            return list(self._predictor[1](images, top_k=top_k, on_bad_image=on_bad_image))

    def model(self, *, step: int | Literal["best"] | None = None, ema: bool = False) -> Any:
        """The trained model, an nnx.Module in evaluation mode; see docs/weights.md."""
        with _one_message():
            return weights.load(self._checkpoint(step), ema=ema)

    def metrics(self) -> list[dict[str, Any]]:
        """Rows of the log, one a step, as in metrics.jsonl; pandas.DataFrame(run.metrics()).

        Numbers that are not finite are None. Empty before the first row.
        """
        rows = runs.rows_by_step(self.workdir)
        return [rows[step] for step in sorted(rows)]

    def _checkpoint(self, step: int | Literal["best"] | None) -> epath.Path:
        return checkpoint_dir.find(self.workdir if step is None else f"{self.workdir}@{step}")

    def _prepare(self) -> None:
        """Settings of JAX, as the commands make them."""
        if self.config.deterministic:
            environment.deterministic()
        compilation_cache.use()
        if jax.process_count() > 1:
            raise UserError(
                "A Run is of one process: elsewhere use the commands (docs/several_hosts.md)."
            )


# A command, to the end of its line; or the flag of one. A flag without a value is a switch.
_COMMAND_OR_FLAG = re.compile(
    r"(?<![\w/.-])(?:(?:vit-jax|python -m vit_jax)\b.*|--(?:config\.)?(\w[\w.<>]*=?))"
)
_SWITCHES = ("allow_config_change", "ema")


@contextlib.contextmanager
def _one_message() -> Iterator[None]:
    """Errors that are told in one message come without the frames of what failed.

    These would keep the run's arrays alive: Python and notebooks remember the last traceback. Flags
    that a message names become the arguments and fields that they are in Python.
    """
    try:
        yield
    except UserFacingError as error:
        error.args = (_COMMAND_OR_FLAG.sub(_in_python, str(error)),)
        error.__context__ = None
        raise error.with_traceback(None) from None


def _in_python(found: re.Match[str]) -> str:
    """A flag as an argument; a command as it is."""
    name = found[1]
    return found[0] if name is None else f"{name}=True" if name in _SWITCHES else name
