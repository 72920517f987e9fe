"""Checks that can be made before the chips start; all errors are reported at once.

Nothing is compiled, nothing allocated on the devices, nothing written. `train --check` (check.py)
looks closer.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from etils import epath
from jax.sharding import Mesh

from vit_jax import weights
from vit_jax.cluster.peers import Peers
from vit_jax.config import InitConfig, InputConfig, RunConfig
from vit_jax.core import class_names, synsets
from vit_jax.core.errors import MISSING, Problems, UserError
from vit_jax.data import files
from vit_jax.data.source import Source
from vit_jax.data.sources import table as sources
from vit_jax.run import build, memory
from vit_jax.run.parts.examples import inherited_data_dir
from vit_jax.store import checkpoint_dir, disk_space
from vit_jax.training.evals import Evals
from vit_jax.training.feed import Feed
from vit_jax.training.objective import Batch
from vit_jax.training.state import StateLayout, total_bytes
from vit_jax.training.warm_start import shapes_to_take
from vit_jax.weights import CheckpointInfo
from vit_jax.weights.config_json import same_classes


class RunParts(NamedTuple):
    """The parts of a run; shapes and shardings only.

    Attributes:
      given, config: the config, and with weights by name pinned.
      eval_data: the data of each evaluation.
      splits: those of training and of the evaluations.
      cached_bytes: of the images that each device keeps.
      trained: the description of init.weights; None if the run does not start from them.
      shapes: shapes of the arrays taken from there, by the parameters' names.
      description: the description in the run's own checkpoints.
    """

    given: RunConfig
    config: RunConfig
    workdir: epath.Path
    mesh: Mesh
    source: Source
    batch_layout: Batch
    step: build.StepParts
    eval_data: dict[str, build.EvalData]
    splits: list[build.SplitOfRun]
    cached_bytes: int
    evals: Evals
    trained: CheckpointInfo | None
    shapes: dict[str, tuple[int, ...]]
    description: dict[str, Any]

    def feed(self, *, start_step: int) -> Feed:
        """The batches from a step on; what input.cache=device keeps is decoded before."""
        build.decode(self.config, self.splits, self.source.num_classes)
        return build.train_feed(self.config, self.source, self.batch_layout, start_step=start_step)


class DataCounts(NamedTuple):
    """The counts that durations and the model depend on."""

    num_examples: int
    classes: build.ModelClasses


def prepare(config: RunConfig, workdir: epath.Path, peers: Peers | None = None) -> RunParts:
    """The parts of the run of `config` in `workdir`.

    Weights by name mean the same at every start of a run, and to all of its processes.

    Raises:
      UserError: config, data, weights or disk are wrong; lists all errors.
    """
    problems = Problems()
    pinned = build.pinned(config, workdir, Peers.alone() if peers is None else peers)
    parts = look(pinned, workdir, problems, given=config)
    problems.tell()
    return parts


def look(
    config: RunConfig, workdir: epath.Path, problems: Problems, given: RunConfig | None = None
) -> RunParts:
    """Like `prepare`, but adds errors to `problems`; the parts they prevent are MISSING.

    config: with weights by name pinned, in place of `given`, if there are any.
    """
    look = problems.look
    # Devices and data.
    mesh = look("mesh", build.mesh, config.mesh)
    source = look("input", build.source, config.input)
    look("input", build.check_classes, config, source)
    kept = look("input", build.check_views, config.input)
    look("input", build.check_batch, config, mesh)
    batch_layout = look("input", build.batch_layout, config, source, mesh)
    data = _declared(config.input)
    if source is not MISSING:
        classes = build.ModelClasses(source.num_classes, source.class_names)
        data = DataCounts(source.num_examples, classes)

    # Model and step.
    num_classes = data.classes.number
    step = build.step_parts(
        config,
        mesh,
        num_examples=data.num_examples,
        num_classes=num_classes,
        class_names=() if source is MISSING else source.class_names,
        source=None if source is MISSING else source,
        look=look,
    )
    model, layout, durations = step.model, step.layout, step.durations
    description = look("model", build.description, model, source, config.init)

    # Evaluations, and what the devices have to hold.
    eval_data, evals = _evaluations(config, data, mesh, step, look)
    of_training = look("input", build.SplitOfRun, "input", source, config.input.preprocess)
    splits = [of_training, *_splits(eval_data)]
    cached = _cached_bytes(config.input, mesh, splits, look) if kept is not MISSING else kept
    look("memory", memory.check_fits, layout, batch_layout, num_classes, cached)

    # First parameters and outputs.
    is_new = not checkpoint_dir.steps(workdir / "checkpoints")
    init = look("init", build.check_init, config.init)
    # With model.name=None the model was made from them: their errors are reported already.
    needed: list[Any] = [init, model] if config.model.name is None else [init]
    taken = is_new and bool(config.init.weights)
    read_info = lambda: build.trained_weights(config.init) if taken else None
    trained = look("init", read_info, after=needed)
    shapes = look("init", _shapes_to_take, config.init, trained, layout, model)
    names = None if source is MISSING else source.class_names
    look("init", _check_head, config.init, trained, names, after=[shapes])
    look("log", build.check_log, config.log)
    look("workdir", disk_space.check_writable, workdir)
    look("workdir", _check_disk_space, config, workdir, layout, durations.total_steps)
    return RunParts(
        config if given is None else given,
        config,
        workdir,
        mesh,
        source,
        batch_layout,
        step,
        eval_data,
        splits,
        cached,
        evals,
        trained,
        shapes,
        description,
    )


def _evaluations(
    config: RunConfig, data: DataCounts, mesh: Mesh, step: build.StepParts, look: Callable[..., Any]
) -> tuple[dict[str, build.EvalData], Evals]:
    """The data of each evaluation, and all of them."""
    kinds = look("evals", build.check_evals, config)
    early = build.check_early_stopping
    look("early_stopping", early, config, step.durations, after=[kinds])
    eval_data = {}
    for name in config.evals:
        size, classes = step.model.preprocess.image_size, data.classes
        if not step.model.num_classes:
            classes = build.ModelClasses(0, None)
        eval_data[name] = look(
            f"evals.{name}", build.eval_data, name, config, classes, mesh, size, after=[kinds]
        )
    evals = look(
        "evals",
        build.evals,
        config,
        eval_data,
        step.layout.graph,
        mesh,
        step.objective,
        total_steps=step.durations.total_steps,
        after=list(eval_data.values()),
    )
    return eval_data, evals


def _splits(eval_data: dict[str, build.EvalData]) -> list[build.SplitOfRun]:
    there = [data for data in eval_data.values() if data is not MISSING]
    return [part.split for data in there for part in data.parts]


def _cached_bytes(
    c: InputConfig, mesh: Mesh, splits: Sequence[build.SplitOfRun], look: Callable[..., Any]
) -> int:
    """Bytes of images on each device; 0 unless input.cache=device."""
    if not build.is_cached(c):
        return 0
    there = [split for split in splits if split is not MISSING]
    sizes = [look(split.where, build.check_cached, c, split, mesh) for split in there]
    look("input", build.check_folder, c, there, after=sizes)
    return look("memory", build.total_cached, c, sizes, after=sizes)


def _declared(c: InputConfig) -> DataCounts:
    """The counts that the config declares of missing data: enough to check everything else."""
    try:
        num_examples = build.declared_examples(c)
    except UserError:  # reported where the data were checked
        return MISSING
    if num_examples is None or c.num_classes is None:
        return MISSING
    return DataCounts(num_examples, build.ModelClasses(c.num_classes, None))


def _shapes_to_take(
    c: InitConfig, trained: CheckpointInfo | None, layout: StateLayout, model: build.Model
) -> dict[str, tuple[int, ...]]:
    """Shapes of the parameters that init.weights gives."""
    if trained is None:
        return {}
    return shapes_to_take(layout.state.params, trained, model.info, head=c.head, ema=c.ema)


def _check_head(c: InitConfig, trained: CheckpointInfo | None, names: Sequence[str] | None) -> None:
    """UserError if a head is kept whose classes have other names than those of the data."""
    if trained is None or c.head != "keep" or not names or not trained.class_names:
        return
    theirs, in_order = trained.class_names, tuple(range(len(names)))
    if same_classes(names, theirs) or synsets.places(names, theirs) == in_order:
        return
    raise UserError(
        f"init.head=keep takes a head over other classes from init.weights={c.weights}. Of the "
        f"data's, {class_names.difference(names, theirs)}. Set init.head=reset for a fresh head, "
        "or correct the data."
    )


def _check_disk_space(
    config: RunConfig, workdir: epath.Path, layout: StateLayout, total_steps: int
) -> None:
    disk_space.check_disk_space(
        workdir,
        checkpoint_bytes=total_bytes(layout.state),
        keep_last=config.checkpoint.keep_last,
        every_steps=config.checkpoint.every_steps,
        total_steps=total_steps,
    )


def check_folders(config: RunConfig, workdir: epath.Path | None = None) -> None:
    """UserError with all that is wrong with the folders of data and weights and the work directory.

    To be called before TensorFlow is imported and the devices are found, which takes seconds: a
    missing folder is the most common error. Remote folders are not checked: that takes longer.
    workdir: None for a command that has none.
    """
    problems = Problems()
    seen: list[tuple[str, str | None]] = []
    for where, source, folder in _of_data(config):
        if (source, folder) not in seen and not (folder and files.is_remote(folder)):
            seen.append((source, folder))
            problems.look(where, sources.check_folder, source, folder, where=where)
    for name, evaluation in config.evals.items():
        if evaluation.labels is not None:
            where = f"evals.{name}.labels"
            problems.look(f"evals.{name}", _check_labels, evaluation.labels, where, "real.json")
    for where, part in _with_pseudo_labels(config.input):
        field = f"{where}.pseudo_labels"
        problems.look(where, _check_labels, part, field, "vit-jax evaluate writes")
    problems.look("method", build.check_teacher, config)
    if workdir is not None:
        problems.look("init", _check_weights, config, workdir)
        problems.look("workdir", disk_space.check_writable, workdir)
    problems.tell()


def _check_labels(path: str, field: str, such_as: str) -> None:
    if not files.is_remote(path) and not epath.Path(path).expanduser().is_file():
        raise UserError(f"{field}={path} does not exist. It is a file such as {such_as}.")


def _with_pseudo_labels(c: InputConfig) -> Iterator[tuple[str, str]]:
    """(section, file) of the training data that have pseudo-labels."""
    sections = {"input": c} | {f"input.mixture.{name}": part for name, part in c.mixture.items()}
    for where, section in sections.items():
        if section.pseudo_labels is not None:
            yield where, section.pseudo_labels


def _of_data(config: RunConfig) -> Iterator[tuple[str, str, str | None]]:
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
    """UserError if the path in init.weights does not exist; a run that has begun needs none."""
    path = config.init.weights
    if config.model.name is None and not path:
        build.architecture(config)
    build.check_init(config.init)
    if path is None:
        return
    is_new = files.is_remote(str(workdir)) or not checkpoint_dir.steps(workdir / "checkpoints")
    if build.named(config).get(("init", "weights")):
        if is_new or config.model.name is None:
            weights.check_name(path)
    elif files.is_remote(path) or epath.Path(path).expanduser().exists():
        return
    elif config.model.name is None:
        build.architecture(config)
    elif is_new:
        build.trained_weights(config.init)
