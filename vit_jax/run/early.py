"""Checks of folders, made before TensorFlow is imported and the devices are found.

Those take seconds, and a missing folder is the most common error. The other checks before the
chips start are in preflight.py.
"""

from collections.abc import Iterator

from etils import epath

from vit_jax.config import RunConfig
from vit_jax.data import files
from vit_jax.data.sources import table as sources
from vit_jax.run import build
from vit_jax.run.parts.examples import data_dir
from vit_jax.run.problems import Problems
from vit_jax.store import checkpoint_dir, disk_space


def look(config: RunConfig, workdir: epath.Path | None = None) -> None:
    """UserError with all that is wrong with the folders of data and weights and the work directory.

    workdir: None for a command that has none. Remote folders are not checked: that takes longer.
    """
    problems = Problems()
    seen: list[tuple[str, str | None]] = []
    for where, source, folder in _of_data(config):
        if (source, folder) not in seen and not (folder and files.is_remote(folder)):
            seen.append((source, folder))
            problems.look(where, sources.check_folder, source, folder, where=where)
    if workdir is not None:
        problems.look("init", _check_weights, config, workdir)
        problems.look("workdir", disk_space.check_writable, workdir)
    problems.tell()


def _of_data(config: RunConfig) -> Iterator[tuple[str, str, str | None]]:
    """(section, source, its folder) of the training and of each evaluation."""
    c = config.input
    if not c.mixture:
        yield "input", c.source, c.data_dir
    for name, part in c.mixture.items():
        source = part.source or c.source
        yield f"input.mixture.{name}", source, data_dir(source, part.data_dir, c.data_dir)
    for name, evaluation in config.evals.items():
        source = evaluation.source or c.source
        yield f"evals.{name}", source, data_dir(source, evaluation.data_dir, c.data_dir)


def _check_weights(config: RunConfig, workdir: epath.Path) -> None:
    """UserError if the path in init.weights does not exist; a run that has begun needs none."""
    path = config.init.weights
    if config.model.name is None and not path:
        build.architecture(config)
    build.check_init(config.init)
    if path is None or files.is_remote(path) or epath.Path(path).expanduser().exists():
        return
    if config.model.name is None:
        build.architecture(config)
    elif files.is_remote(str(workdir)) or not checkpoint_dir.steps(workdir / "checkpoints"):
        build.trained_weights(config.init)
