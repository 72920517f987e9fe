"""From a config to the objects of a run: `Run.build`.

Everything that can be known before the chips start is checked, and all errors are reported at once.
Nothing is compiled, nothing allocated on the devices, nothing written. `train --check` (check.py)
looks closer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from etils import epath
from jax.sharding import Mesh

from vit_jax import weights
from vit_jax.cluster.peers import Peers
from vit_jax.config import InitConfig, InputConfig, RunConfig
from vit_jax.core import class_names, synsets
from vit_jax.core.errors import NOT_MADE, ErrorCollector, UserError
from vit_jax.data import files
from vit_jax.data.source import Source
from vit_jax.data.sources import table as sources
from vit_jax.evals import Evals
from vit_jax.learning.feed import Feed
from vit_jax.learning.losses import Batch
from vit_jax.learning.state import StateLayout, total_bytes
from vit_jax.run import memory, processes
from vit_jax.run.parts import (
    device_cache,
    evaluations,
    examples,
    inputs,
    networks,
    outputs,
    pins,
    teachers,
)
from vit_jax.run.parts.device_cache import SplitOfRun
from vit_jax.run.parts.durations import Durations
from vit_jax.run.parts.eval_data import EvalData, ModelClasses, eval_data
from vit_jax.run.parts.examples import inherited_data_dir
from vit_jax.run.parts.updates import StepParts, step_parts
from vit_jax.run.parts.warm_start import shapes_to_take
from vit_jax.store import checkpoint_dir
from vit_jax.store import workdir as workdirs


@dataclasses.dataclass(frozen=True)
class Run:
    """The objects of a run: shapes and shardings, and data that are not read yet.

    Attributes:
      requested: the config as it was given.
      config: the same, where names of weights (hf:...) are pinned to what they mean; see pins.py.
      workdir: where its checkpoints and logs go.
      mesh: its devices.
      source: the training data.
      batch_layout: shapes and shardings of a training batch.
      step: the parts of a step, among them the model and the durations; not a number.
      eval_data: the data of each evaluation.
      cached_bytes: bytes of the images that each device keeps.
      evals: the evaluations, each with its cadence.
      trained: the description of init.weights; None if the run does not start from them.
      shapes: shapes of the arrays taken from there, by the parameters' names.
      description: the description in the run's own checkpoints.
    """

    requested: RunConfig
    config: RunConfig
    workdir: epath.Path
    mesh: Mesh
    source: Source
    batch_layout: Batch
    step: StepParts
    eval_data: dict[str, EvalData]
    cached_bytes: int
    evals: Evals
    trained: weights.CheckpointInfo | None
    shapes: dict[str, tuple[int, ...]]
    description: dict[str, Any]

    @classmethod
    def build(cls, config: RunConfig, workdir: epath.Path, peers: Peers | None = None) -> Run:
        """The run of `config` in `workdir`.

        Weights by name mean the same at every start of a run, and to all of its processes, which
        have to find the same data and weights.

        Raises:
          UserError: config, data, weights or disk are wrong; lists all errors.
        """
        errors = ErrorCollector()
        peers = Peers.alone() if peers is None else peers
        pinned = pins.pin_weights(config, workdir, peers)
        run = cls.attempt(pinned, workdir, errors, requested=config)
        errors.raise_all()
        if peers.several:
            processes.check_same_files(peers, _fingerprints(run))
        return run

    @classmethod
    def attempt(
        cls,
        config: RunConfig,
        workdir: epath.Path,
        errors: ErrorCollector,
        requested: RunConfig | None = None,
    ) -> Run:
        """As `build`, but adds the errors to `errors`; parts that they prevent are NOT_MADE.

        config: with weights by name pinned, in place of `requested`, if there are any.
        """
        attempt = errors.attempt
        # Devices and data.
        mesh = attempt("mesh", inputs.mesh, config.mesh)
        source = attempt("input", examples.source, config.input)
        attempt("input", examples.check_fields, config)
        attempt("input", examples.check_classes, config, source)
        views_read = attempt("input", examples.check_views, config.input)
        attempt("input", inputs.check_batch, config, mesh)
        batch_layout = attempt("input", inputs.batch_layout, config, source, mesh)
        num_examples, num_classes, classes = _counts(config.input, source)

        # Model and step. Of a run that goes on, model.name=None means its own checkpoint.
        is_new = not checkpoint_dir.steps(workdir / "checkpoints")
        init = config.init if is_new else dataclasses.replace(config.init, weights=str(workdir))
        step = step_parts(
            dataclasses.replace(config, init=init),
            mesh,
            num_examples=num_examples,
            num_classes=num_classes,
            class_names=() if source is NOT_MADE else source.class_names,
            source=None if source is NOT_MADE else source,
            attempt=attempt,
        )
        description = attempt("model", networks.description, config, step.model, source)

        # Evaluations, and what the devices have to hold.
        data = _eval_data(config, classes, mesh, step, attempt)
        needed = [*data.values(), step.layout, step.objective, step.durations]
        evals = attempt("evals", _evals, config, data, mesh, step, after=needed)
        train_split = attempt("input", SplitOfRun, "input", source, config.input.preprocess)
        splits = [train_split]
        for each in data.values():
            splits += [] if each is NOT_MADE else [part.split for part in each.parts]
        cached = NOT_MADE
        if views_read is not NOT_MADE:
            cached = _cached_bytes(config.input, mesh, splits, attempt)
        sizes = (step.layout, batch_layout, num_classes, cached)
        attempt("memory", memory.check_fits, *sizes)

        # First parameters and outputs.
        init_check = attempt("init", networks.check_init, config.init)
        # With model.name=None the model was made from them: their errors are reported already.
        needed = [init_check, step.model] if config.model.name is None else [init_check]
        trained = None
        if is_new and config.init.weights:
            trained = attempt("init", networks.trained_weights, config.init, after=needed)
        shapes = attempt("init", _shapes_to_take, config.init, trained, step.layout, step.model)
        attempt("init", _check_head, config.init, trained, source, after=[shapes])
        attempt("log", outputs.check_log, config.log)
        attempt("workdir", workdirs.check_writable, workdir)
        attempt("workdir", _check_disk_space, config, workdir, step.layout, step.durations)
        return cls(
            requested=config if requested is None else requested,
            config=config,
            workdir=workdir,
            mesh=mesh,
            source=source,
            batch_layout=batch_layout,
            step=step,
            eval_data=data,
            cached_bytes=cached,
            evals=evals,
            trained=trained,
            shapes=shapes,
            description=description,
        )

    def feed(self, *, start_step: int) -> Feed:
        """The batches from a step on."""
        return inputs.train_feed(self.config, self.source, self.batch_layout, start_step=start_step)


def _fingerprints(run: Run) -> dict[str, list[str]]:
    """Those of all data and weights that the run reads, by the fields that name them."""
    teacher = run.step.layout.teacher
    read = {"init.weights": run.trained, "method.teacher": teacher and teacher.model.about}
    return (
        {"input": [run.source.fingerprint]}
        | {
            f"evals.{name}": [part.source.fingerprint for part in data.parts]
            for name, data in run.eval_data.items()
        }
        | {name: [about.fingerprint()] for name, about in read.items() if about}
    )


def _counts(c: InputConfig, source: Source) -> tuple[int, int, ModelClasses]:
    """The numbers of examples and classes of the data, and the classes; all may be NOT_MADE.

    If the data cannot be read, those declared: enough to check the rest.
    """
    unknown = (NOT_MADE, NOT_MADE, NOT_MADE)
    if source is not NOT_MADE:
        classes = ModelClasses(source.num_classes, source.class_names)
        return source.num_examples, source.num_classes, classes
    try:
        num_examples = examples.declared_examples(c)
    except UserError:  # reported where the data were checked
        return unknown
    if num_examples is None or c.num_classes is None:
        return unknown
    return num_examples, c.num_classes, ModelClasses(c.num_classes, None)


def _eval_data(
    config: RunConfig,
    classes: ModelClasses,
    mesh: Mesh,
    step: StepParts,
    attempt: Callable[..., Any],
) -> dict[str, EvalData]:

    def make(name: str, classes: ModelClasses, model: networks.Model) -> EvalData:
        classes = classes if model.num_classes else ModelClasses(0, None)
        return eval_data(name, config, classes, mesh, model.preprocess.image_size)

    kinds = attempt("evals", evaluations.check_evals, config)
    stops = evaluations.check_early_stopping
    attempt("early_stopping", stops, config, step.durations, after=[kinds])
    return {
        name: attempt(f"evals.{name}", make, name, classes, step.model, after=[kinds, mesh])
        for name in config.evals
    }


def _evals(config: RunConfig, data: dict[str, EvalData], mesh: Mesh, step: StepParts) -> Evals:
    graph, total_steps = step.layout.graph, step.durations.total_steps
    return evaluations.evals(config, data, graph, mesh, step.objective, total_steps=total_steps)


def _cached_bytes(
    c: InputConfig, mesh: Mesh, splits: Sequence[SplitOfRun], attempt: Callable[..., Any]
) -> int:
    """Bytes of images on each device; 0 unless input.cache=device."""
    if not device_cache.is_cached(c):
        return 0
    there = [split for split in splits if split is not NOT_MADE]
    sizes = [attempt(split.where, device_cache.check_cached, c, split, mesh) for split in there]
    return attempt("memory", device_cache.total_cached, c, sizes, after=sizes)


def _shapes_to_take(
    c: InitConfig,
    trained: weights.CheckpointInfo | None,
    layout: StateLayout,
    model: networks.Model,
) -> dict[str, tuple[int, ...]]:
    """Shapes of the parameters that init.weights gives."""
    if trained is None:
        return {}
    return shapes_to_take(layout.state.params, trained, model.info, head=c.head, ema=c.ema)


def _check_head(c: InitConfig, trained: weights.CheckpointInfo | None, source: Source) -> None:
    """Raises UserError if a head is kept whose classes have other names than those of the data."""
    names = source.class_names
    if trained is None or c.head != "keep" or not names or not trained.class_names:
        return
    theirs, in_order = trained.class_names, tuple(range(len(names)))
    if class_names.agree(names, theirs) or synsets.places(names, theirs) == in_order:
        return
    raise UserError(
        f"init.head=keep takes a head over other classes from init.weights={c.weights}. Of the "
        f"data's, {class_names.difference(names, theirs)}. Set init.head=reset for a fresh head, "
        "or correct the data."
    )


def _check_disk_space(
    config: RunConfig, workdir: epath.Path, layout: StateLayout, durations: Durations
) -> None:
    c = config.checkpoint
    workdirs.check_disk_space(
        workdir,
        checkpoint_bytes=total_bytes(layout.state),
        keep_last=c.keep_last,
        keep_every_steps=c.keep_every_steps,
        keep_best=c.best_metric is not None,
        every_steps=c.every_steps,
        total_steps=durations.total_steps,
    )


def check_folders(config: RunConfig, workdir: epath.Path | None = None) -> None:
    """Raises UserError listing all errors in the folders of data, weights and the run.

    To be called before TensorFlow is imported and the devices are found, which takes seconds: a
    missing folder is the most common error. Remote folders are not checked: that takes longer.
    workdir: None for a command that has none.
    """
    errors = ErrorCollector()
    seen: list[tuple[str, str | None]] = []
    for where, source, folder in _data_folders(config):
        if (source, folder) not in seen and not (folder and files.is_remote(folder)):
            seen.append((source, folder))
            errors.attempt(where, sources.check_folder, source, folder, where=where)
    for name, evaluation in config.evals.items():
        if evaluation.labels is not None:
            where = f"evals.{name}.labels"
            errors.attempt(f"evals.{name}", _check_labels, evaluation.labels, where, "real.json")
    for where, part in _pseudo_label_files(config.input):
        field = f"{where}.pseudo_labels"
        errors.attempt(where, _check_labels, part, field, "vit-jax evaluate writes")
    errors.attempt("method", teachers.check_teacher, config)
    if workdir is not None:
        errors.attempt("init", _check_weights, config, workdir)
        errors.attempt("workdir", workdirs.check_writable, workdir)
    errors.raise_all()


def _check_labels(path: str, field: str, such_as: str) -> None:
    if not files.is_remote(path) and not epath.Path(path).expanduser().is_file():
        raise UserError(f"{field}={path} does not exist. It is a file such as {such_as}.")


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
        networks.architecture(config)
    networks.check_init(config.init)
    is_new = files.is_remote(str(workdir)) or not checkpoint_dir.steps(workdir / "checkpoints")
    if path is None or not is_new:
        return
    if pins.named_weights(config).get(("init", "weights")):
        weights.check_name(path)
    elif not files.is_remote(path) and not epath.Path(path).expanduser().exists():
        networks.trained_weights(config.init)
