"""A look at the folders of data, weights and the run, before anything slow is imported."""

from __future__ import annotations

from collections.abc import Iterator

from etils import epath

from vit_jax import weights
from vit_jax.config import InputConfig, RunConfig
from vit_jax.core.errors import ErrorCollector, reading
from vit_jax.core.files import is_remote
from vit_jax.data.sources import table as sources
from vit_jax.run.parts import networks, pins
from vit_jax.run.parts.examples import inherited_data_dir
from vit_jax.store import checkpoint_dir
from vit_jax.store import workdir as workdirs


def check_folders(config: RunConfig, workdir: epath.Path | None = None) -> None:
    """Raises UserError listing all errors in the folders of data, weights and the run.

    To be called before TensorFlow is imported and the devices are found, which takes seconds: a
    missing folder is the most common error. Remote folders are not checked: that takes longer.
    workdir: None for a command that has none.
    """
    errors = ErrorCollector()
    seen: list[tuple[str, str | None]] = []
    for where, source, folder in _data_folders(config):
        if (source, folder) not in seen and not (folder and is_remote(folder)):
            seen.append((source, folder))
            errors.attempt(where, sources.check_folder, source, folder, where=where)
    for name, evaluation in config.evals.items():
        if evaluation.labels is not None:
            where = f"evals.{name}.labels"
            errors.attempt(f"evals.{name}", _check_file, where, evaluation.labels, "real.json")
    for where, part in _pseudo_label_files(config.input):
        field = f"{where}.pseudo_labels"
        errors.attempt(where, _check_file, field, part, "vit-jax evaluate writes")
    if path := getattr(config.method, "teacher", None):
        from vit_jax.run.parts import teachers

        errors.attempt("method", teachers.check_teacher, path)
    if workdir is not None:
        errors.attempt("init", _check_weights, config, workdir)
        errors.attempt("workdir", workdirs.check_writable, workdir)
    errors.raise_all()


def _check_file(field: str, path: str, such_as: str) -> None:
    if not is_remote(path):
        with reading(field, path, cure=f"It is a file such as {such_as}."):
            epath.Path(path).expanduser().open("rb").close()


def _pseudo_label_files(c: InputConfig) -> Iterator[tuple[str, str]]:
    """(section, file) of the training data that have pseudo-labels."""
    sections = {"input": c} | {f"input.mixture.{name}": part for name, part in c.mixture.items()}
    for where, section in sections.items():
        if section.pseudo_labels is not None:
            yield where, section.pseudo_labels


def _data_folders(config: RunConfig) -> Iterator[tuple[str, str, str | None]]:
    """(section, source, its folder) of the training and of each evaluation."""
    c = config.input
    if not c.mixture:
        yield "input", c.source, c.data_dir
    for name, part in c.mixture.items():
        source = part.source or c.source
        yield f"input.mixture.{name}", source, inherited_data_dir(c, source, part.data_dir)
    for name, evaluation in config.evals.items():
        source = evaluation.source or c.source
        yield f"evals.{name}", source, inherited_data_dir(c, source, evaluation.data_dir)


def _check_weights(config: RunConfig, workdir: epath.Path) -> None:
    """Raises UserError if init.weights does not exist; a run that has begun needs none."""
    path = config.init.weights
    if config.model.name is None and not path:
        networks.architecture(config.model, config.init, config.loss.exclusive)
    is_new = is_remote(str(workdir)) or not checkpoint_dir.steps(workdir / "checkpoints")
    if not path or not is_new:
        return
    if pins.named_weights(config).get(("init", "weights")):
        weights.check_name(path)
    elif not is_remote(path) and not epath.Path(path).expanduser().exists():
        networks.trained_weights(config.init)
