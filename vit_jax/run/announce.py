"""Messages of a run to the person who watches it."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import jax
import numpy as np
from etils import epath
from jax.sharding import Mesh

from vit_jax import config as configs
from vit_jax import weights
from vit_jax.config import CheckpointConfig, RunConfig
from vit_jax.core import axes, compilation_cache, machine, pytrees
from vit_jax.core.metric_names import readable
from vit_jax.core.screen import Screen, format_count, format_duration
from vit_jax.data.source import Source, share_examples
from vit_jax.evals.early_stopping import EarlyStopping
from vit_jax.learning.feed import SKIPPED_IMAGES, BadImages
from vit_jax.learning.losses import Objective
from vit_jax.learning.methods import SUPERVISED
from vit_jax.learning.state import StateLayout
from vit_jax.models import ModelInfo
from vit_jax.parallel import mesh as meshes
from vit_jax.parallel.products import Products
from vit_jax.run.parts import examples
from vit_jax.run.parts.durations import Durations
from vit_jax.run.parts.eval_data import EvalData
from vit_jax.run.parts.networks import Model
from vit_jax.run.parts.updates import StepParts
from vit_jax.store.metrics import RESERVED
from vit_jax.store.workdir import flatten

if TYPE_CHECKING:
    from vit_jax.learning.teacher import Teacher

_NAMED = 10  # classes without an image that are named


def run(
    screen: Screen,
    config: RunConfig,
    source: Source,
    mesh: Mesh,
    step: StepParts,
    eval_data: Mapping[str, EvalData],
    changes: Sequence[str],
) -> None:
    """Announces the run: its data, devices, model, method, plan and parameters."""
    durations, info = step.durations, step.model.info
    devices = mesh.devices.ravel()
    epochs = durations.total_steps / durations.steps_per_epoch
    data(screen, examples.title(config.input, source), source)
    sizes = [f"{name} {n}" for name, n in mesh.shape.items() if n > 1]
    along = f": {' x '.join(sizes)}" if sizes else ""
    screen.say(f"devices  {mesh.size} x {devices[0].device_kind}{along}{meshes.unused(mesh)}")
    screen.say(
        f"model    {info.name}: {format_count(info.parameters)} parameters, "
        f"{format_count(info.forward_flops)}FLOPs per image forward"
    )
    slow_dtype(screen, info, devices[0])
    if config.method.kind != SUPERVISED:
        screen.say(f"method   {config.method.kind}: {forward(step.products)}")
    screen.say(
        f"plan     {durations.total_steps:,} steps of {config.input.batch_size:,} examples "
        f"({epochs:.1f} epochs), {durations.warmup_steps:,} of them warmup"
        + (f", {durations.cooldown_steps:,} cooldown" if durations.cooldown_steps else "")
    )
    for change in changes:
        screen.say(f"changed  {change}")
    for title, evaluated in _eval_sources(config, eval_data):
        notes(screen, title, evaluated)
    shared_images(screen, source, eval_data)
    parameters(screen, step.objective, step.layout)


def slow_dtype(screen: Screen, info: ModelInfo, device: jax.Device) -> None:
    """Says of a model in bfloat16 that float32 is faster on CPUs without products of bfloat16."""
    in_bfloat16 = info.spec.get("dtype") == "bfloat16"
    if in_bfloat16 and device.platform == "cpu" and not machine.multiplies_bfloat16():
        screen.say(
            "dtype    model.dtype=bfloat16: float32 is faster on this CPU (docs/benchmarks.md)"
        )


def data(screen: Screen, title: str, source: Source) -> None:
    """Announces a data set: its title, size and folder, and what to know of its files."""
    screen.say(f"data     {title}: {size(source)}")
    notes(screen, title, source)


def notes(screen: Screen, title: str, source: Source) -> None:
    """Announces files that are not read, and classes without an image."""
    for note in source.notes:
        screen.say(f"data     {title}: {note}")
    labels = source.stored_labels()
    if labels is None or not source.num_classes:
        return
    empty = np.setdiff1d(np.arange(source.num_classes), labels.labels)
    if len(empty):
        names = [source.class_names[c] if source.class_names else str(c) for c in empty[:_NAMED]]
        more = ", ..." if len(empty) > _NAMED else ""
        screen.say(
            f"data     {title}: {len(empty):,} of {source.num_classes:,} classes have no image: "
            f"{', '.join(names)}{more}"
        )


def evaluations(screen: Screen, config: RunConfig, eval_data: Mapping[str, EvalData]) -> None:
    """Announces the data sets of evaluations, by their names."""
    for title, source in _eval_sources(config, eval_data):
        data(screen, title, source)


def shared_images(screen: Screen, source: Source, eval_data: Mapping[str, EvalData]) -> None:
    """Says of evaluations that they score images of the split that is trained on."""
    for name, evaluation in eval_data.items():
        one, other = source, evaluation.source
        same_data = (one.name, one.location) == (other.name, other.location)
        if same_data and share_examples(one, other):
            screen.say(f"data     {name}: shares images with the split that is trained on")


def _eval_sources(
    config: RunConfig, eval_data: Mapping[str, EvalData]
) -> Iterator[tuple[str, Source]]:
    for name, evaluation in eval_data.items():
        for part in evaluation.parts:
            c = config.evals[name]
            split = c.split if part is evaluation else c.train_split
            yield f"{name}: {part.source.name}, {split}", part.source


def forward(products: Products) -> str:
    """FLOPs of a method, such as "12 MFLOPs per example forward, 4 MFLOPs of them ..."."""
    alone = f", {format_count(products.given)}FLOPs of them without gradients"
    return (
        f"{format_count(sum(products))}FLOPs per example forward{alone if products.given else ''}"
    )


def size(source: Source) -> str:
    """The size of a data set and its folder: "1,000 examples, 10 classes, in data/birds"."""
    weighted = ", weighted labels" if source.weighted else ""
    place = f", in {source.location}" if source.location else ""
    return f"{source.num_examples:,} examples, {source.num_classes:,} classes{weighted}{place}"


def parameters(screen: Screen, objective: Objective, layout: StateLayout) -> None:
    """Announces how many parameters are trained, where not all are, and which are not sharded.

    And the classes' weights in the loss and the teacher, where there are any.
    """
    trained(screen, objective, layout)
    if objective.class_weights is not None:
        least, most = min(objective.class_weights), max(objective.class_weights)
        screen.say(f"loss     classes weigh {least:.3g} to {most:.3g}")
    if layout.teacher is not None:
        teacher(screen, layout.teacher)
    unsharded(screen, layout)


def trained(screen: Screen, objective: Objective, layout: StateLayout) -> None:
    """Announces how many of the parameters are trained, where not all are."""
    frozen = objective.frozen
    if frozen is None:
        return
    params = pytrees.without_statistics(layout.state.params)
    number = lambda x, mask: round(x.size * (1 - float(mask.mean())))
    numbers = pytrees.flatten(jax.tree.map(number, params, frozen.masks(params)))
    said = f"{format_count(sum(numbers.values()))} parameters"
    if frozen.adapters is not None:
        adapter_size = sum(n for name, n in numbers.items() if pytrees.is_adapter(name))
        said += f", {format_count(adapter_size)} of them in adapters"
        said += f" of rank {frozen.adapters.rank}"
    screen.say(f"trained  {said}; the others are frozen")
    screen.say(f"         in {', '.join(frozen.trained_parts(params))}")


def teacher(screen: Screen, teacher: Teacher) -> None:
    """Announces the model that is learnt from."""
    about, some = teacher.model.about, ""
    if teacher.columns is not None:
        some = f", {teacher.num_classes:,} of its {teacher.model.num_classes:,} classes"
    size = " x ".join(map(str, teacher.image_size))
    screen.say(f"teacher  {about.name} from {about.folder}{some}, on images of {size} pixels")


FIELDS = {
    axes.WIDTH: "model.width",
    axes.HEADS: "model.num_heads",
    axes.MLP: "model.mlp_dim",
    axes.CHANNELS: "the ResNet's width",
}


def unsharded(screen: Screen, layout: StateLayout) -> None:
    """Lists arrays replicated along mesh axes that should shard them: one line for each cause."""
    sizes = layout.mesh.shape

    def several(mesh_axes: Sequence[str]) -> str:
        return " x ".join(f"{axis}={sizes[axis]}" for axis in mesh_axes)

    for whose, causes in (
        ("", layout.unsharded),
        ("the state's arrays of ", layout.unsharded_state),
    ):
        for cause, names in causes.items():
            fields = [FIELDS[cause.name], *(f"mesh.{a}" for a in cause.replicated)]
            screen.say(
                f"unsharded along {several(cause.replicated)}: {whose}{len(names)} "
                f"parameter{'s' if len(names) > 1 else ''}, such as {names[0]}: {cause.name} "
                f"{cause.size} does not divide over {several(cause.over)}; change "
                f"{' or '.join(fields)}"
            )


def warm_start(screen: Screen, trained: weights.CheckpointInfo, model: ModelInfo) -> None:
    """Announces the origin of the first parameters."""
    old, new = (" x ".join(map(str, tokens.grid)) for tokens in (trained.tokens, model.tokens))
    change = "" if old == new else f"; {old} patches become {new}"
    screen.say(f"weights  {trained.name} from {trained.origin}{change}")


@contextlib.contextmanager
def compiling(screen: Screen) -> Iterator[None]:
    """Announces the compilation of the step that runs inside it."""
    screen.update("compiling the first step ...")
    started, before = time.perf_counter(), compilation_cache.tally()
    yield
    after = compilation_cache.tally()
    cached = after.found > before.found and after.stored == before.stored
    source = ", from the cache" if cached else ""
    screen.say(f"compiled in {time.perf_counter() - started:.1f} s{source}")


class Progress:
    """The line of progress, and what a method finds wrong, once until it is right again."""

    def __init__(self, screen: Screen, durations: Durations, objective: Objective):
        self._screen, self._durations, self._objective = screen, durations, objective
        self._is_wrong = False

    def show(self, step: int, values: Mapping[str, float], eta_secs: float) -> None:
        """Updates the line; the key facts come first, since narrow terminals cut it."""
        durations = self._durations
        skipped = values.get(SKIPPED_IMAGES, 0)
        # A step whose batch is left out has no loss and no accuracy.
        shown_values = {
            "loss {:.4f}": values.get("train/loss"),
            "{} left": format_duration(eta_secs),
            "{:,.0f} bad images skipped": skipped or None,
            "accuracy {:.1%}": values.get("train/accuracy"),
            "{:,.0f} images/s": values["speed/images_per_second"],
            "MFU {:.1%}": values.get("speed/mfu"),
            "input wait {:.0%}": values["speed/input_wait"],
            "epoch {:.1f}": step / durations.steps_per_epoch,
        }
        shown = [text.format(value) for text, value in shown_values.items() if value is not None]
        self._screen.update(f"step {step:,}/{durations.total_steps:,}", *shown)
        wrong = self._objective.warning(values, step)
        if wrong and not self._is_wrong:
            self._screen.say(f"warning  step {step:,}: {wrong}")
        self._is_wrong = bool(wrong)


def resumed(screen: Screen, step: int) -> None:
    """Announces the step that the run resumes from, unless it is new."""
    if step:
        screen.say(f"resumed  from the checkpoint of step {step:,}")


def bad_images(screen: Screen, *all_bad: BadImages) -> None:
    """Names each skipped image, once."""
    for bad in all_bad:
        for file in bad.untold():
            screen.note(f"skipped  {file}")


def results(screen: Screen, step: int, numbers: Mapping[str, float]) -> None:
    """Prints the results of the evaluations, one line each; nothing if none was due."""
    for name, line in _by_evaluation(numbers).items():
        screen.say(f"step {step:,} | {name}: {line}")


def stopped_early(screen: Screen, early: EarlyStopping, durations: Durations) -> None:
    """Says why the run ended before its last step, if it did."""
    if (stopped := early.stopped) is None:
        return
    of = f"of {durations.total_steps:,} steps: {early.metric}"
    if stopped.best is None:
        screen.say(f"stopped  after {stopped.step:,} {of} was never finite")
        return
    by = f" by more than {early.min_delta:g}" if early.min_delta else ""
    screen.say(
        f"stopped  after {stopped.step:,} {of} was not better than {stopped.best:.4g}, of step "
        f"{stopped.best_step:,},{by} in {early.patience} evaluations (early_stopping)"
    )


def adapted(screen: Screen, given: RunConfig, config: RunConfig) -> None:
    """Says what a recipe has set by the weights, the data and the machine; nothing if nothing."""
    before, after = (flatten(configs.to_dict(each)) for each in (given, config))
    changed = [
        f"{name}={text}"
        for name, text in after.items()
        if before.get(name) != text and text != "null"  # such as the unit that another took over
    ]
    if changed:
        screen.say("adapted  to weights, data and machine, but for what is given:")
        for text in changed:
            screen.say(f"           {text}")


def best(
    screen: Screen, config: CheckpointConfig, found: tuple[int, float] | None, workdir: epath.Path
) -> None:
    """Says which step was best, by what, and how to take it; nothing if nothing was to tell."""
    if found is not None:
        metric = str(config.best_metric)
        for name, line in _by_evaluation({metric: found[1]}).items():
            screen.say(f"best     step {found[0]:,} by {name}: {line}; it is {workdir}@best")


def finished(
    screen: Screen,
    end: int,
    model: Model,
    row: Mapping[str, float],
    workdir: epath.Path,
    best_step: int | None = None,
) -> None:
    """Prints the result after the last step, `end`, where it is, and what to do next."""
    screen.say(f"finished {end:,} steps")
    if skipped := row.get(SKIPPED_IMAGES):
        screen.say(
            f"skipped  bad images {skipped:,.0f} times, by weight 0; named above when first met"
        )
    for name, line in _by_evaluation(row).items():
        screen.say(f"result   {name}: {line}")
    screen.say(f"saved    {workdir / 'checkpoints' / str(end)}")
    weights = shlex.quote(f"{workdir}" if best_step in (None, end) else f"{workdir}@best")
    command = f"predict --checkpoint {weights} IMAGE..."
    if not model.num_classes:
        command = f"train --config finetune --config.init.weights={weights} ..."
    screen.say(f"next     vit-jax {command}")


def _by_evaluation(numbers: Mapping[str, float]) -> dict[str, str]:
    """{"test/accuracy": 0.9, ...} -> {"test": "accuracy 90.00%, ..."}."""
    lines: dict[str, list[str]] = {}
    for key, value in numbers.items():
        name, _, number = key.partition("/")
        hidden = number in ("", "examples") or (number.endswith("_images") and not value)
        if name not in RESERVED and not hidden:
            text = f"{number.replace('_', ' ')} {readable(number, value)}"
            lines.setdefault(name, []).append(text)
    return {name: ", ".join(parts) for name, parts in lines.items()}
