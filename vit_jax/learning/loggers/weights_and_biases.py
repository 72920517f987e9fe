"""Optional logging to Weights & Biases; its own variables apply, such as WANDB_MODE=offline."""

import io
import secrets
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from etils import epath
from PIL import Image

from vit_jax.core.errors import Preempted, UserError, writing
from vit_jax.core.files import is_remote, write_file
from vit_jax.learning.histograms import Histogram

ID_FILE = "wandb_id.txt"
FORBIDDEN = "/\\#?%:"  # characters in a project's name
LONGEST_PROJECT = 128


class WeightsAndBiases:
    """The W&B run of a work directory in a project; a resumed run continues the same one."""

    def __init__(
        self, workdir: epath.Path, *, project: str, config: Mapping[str, Any], program: str = ""
    ):
        self._wandb = wandb = _wandb()
        cure = "Log in by `wandb login`, or set WANDB_MODE=offline."
        with writing("log.wandb_project", project, cure=cure):
            self._run = wandb.init(
                project=project,
                name=workdir.name,
                id=_run_id(workdir),
                resume="allow",
                dir=None if is_remote(workdir) else str(workdir),
                config=dict(config),
                allow_val_change=True,  # for fields that may differ when a run is resumed
                settings=wandb.Settings(console="off"),  # a rewritten line fills its log
            )
        Path(self._run.dir, "config.py").write_text(program)  # W&B takes the files of this folder
        # A custom axis: W&B accepts no row at or below its own last step, but a resumed run writes
        # the rows after the checkpoint again.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({"step": step, **values})

    def write_histograms(self, step: int, histograms: Mapping[str, Histogram]) -> None:
        pictures = {
            name: self._wandb.Histogram(np_histogram=(h.counts, h.edges))
            for name, h in histograms.items()
        }
        self._run.log({"step": step, **pictures})

    def write_pictures(self, step: int, pictures: Mapping[str, bytes]) -> None:
        shown = {
            name: self._wandb.Image(Image.open(io.BytesIO(png))) for name, png in pictures.items()
        }
        self._run.log({"step": step, **shown})

    def close(self, error: BaseException | None) -> None:
        """Ends the run: finished, failed, or preempted."""
        if isinstance(error, Preempted):
            self._run.mark_preempting()
        self._run.finish(exit_code=0 if error is None else getattr(error, "exit_status", 2))


def check_project(project: str) -> None:
    """Raises UserError if a project cannot have this name, or wandb is not installed."""
    wrong = [c for c in FORBIDDEN if c in project]
    if wrong or not 0 < len(project) <= LONGEST_PROJECT:
        raise UserError(
            f"log.wandb_project={project!r} is not of 1 to {LONGEST_PROJECT} characters without "
            f"{' '.join(FORBIDDEN)}"
        )
    _wandb()


def _wandb() -> ModuleType:
    with writing("log.wandb_project", cure="pip install wandb."):
        import wandb
    return wandb


def _run_id(workdir: epath.Path) -> str:
    """The permanent W&B id of this work directory, created by its first run."""
    file = workdir / ID_FILE
    if not file.exists():
        write_file(file, secrets.token_hex(4) + "\n")
    return file.read_text().strip()
