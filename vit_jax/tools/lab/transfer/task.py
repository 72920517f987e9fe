"""The task of a transfer, and the two sweeps that do it.

`choose/` trains on a part of the training split and is scored on the rest; `final/` trains on all
of it, once for each seed, and is scored on the test, once. Both are grids of overrides of one
config, so every training can be repeated by itself with vit_jax.train.

Whatever is opened here says which examples there are, by names, counts and the training split's
labels. No image of the test is read, nor a label of it.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from vit_jax.config import EvalConfig, InputConfig, RunConfig
from vit_jax.core.errors import NOT_MADE, ErrorCollector, UserError, nearest
from vit_jax.core.files import is_remote
from vit_jax.core.schema import config_file, strict
from vit_jax.core.screen import Screen
from vit_jax.data import files, label_index
from vit_jax.data.source import Source
from vit_jax.data.sources import splits, table
from vit_jax.data.sources.splits import Slice
from vit_jax.learning.state import EMA_ENDING
from vit_jax.run.folders import check_folders
from vit_jax.run.parts import examples
from vit_jax.tools.lab.sweep import grid as grids
from vit_jax.tools.lab.sweep import run as sweeps
from vit_jax.tools.lab.sweep.grid import CONFIG, MAX_NAMED, SEED, SweepGrid

CHOOSE, FINAL = "choose", "final"  # the folders of the sweeps
HELD_OUT = "held_out"  # the evaluation on the held-out part
NO_CHECKPOINT = "none"
# Fields by which a training would choose by an evaluation, perhaps that of the test.
PEEKING = ("checkpoint.best_metric", "early_stopping.metric")
# Fields that a config which adapts derives from the number of examples.
DERIVED = ("input.batch_size", "total.epochs")
_NOT_CHOSEN = (SEED, CONFIG, "input.split", "init.weights", *PEEKING)
HELD_OUT_PART = 0.1  # unless the task says another


@dataclasses.dataclass(frozen=True)
class TransferTask:
    checkpoint: str  # what training starts from, as init.weights; NO_CHECKPOINT: random parameters
    # The config file, the fields that all trainings share, and the lists to choose from.
    grid: SweepGrid
    # The end of input.split that is held out for choosing: a fraction of its examples if below 1,
    # else their number; None: HELD_OUT_PART.
    held_out: float | None = None
    # The split to train on for choosing, and `held_out_split` the one to choose by, such as
    # train[:800] and train[800:1000]; both, instead of `held_out`, or none.
    choose_split: str | None = None
    held_out_split: str | None = None
    # The name of the config's evaluation of the test; None: the only one.
    evaluation: str | None = None
    metric: str = "accuracy"  # the number of that evaluation to choose by
    ema: bool = False  # choose by the EMA of the weights
    seeds: int = 3  # how many trainings the result is the mean of
    choose_seeds: int = 1  # the same for each point of the choice

    @property
    def held_out_part(self) -> float:
        """The fraction or number that `held_out` means."""
        return HELD_OUT_PART if self.held_out is None else self.held_out

    @functools.cached_property
    def config(self) -> RunConfig:
        """The config of the first values of all lists, with these weights."""
        weights = {} if self.from_scratch else {"init.weights": self.checkpoint}
        return self.grid._replace(common=self.grid.common | weights).load()

    def with_fields(self, fields: Mapping[str, str]) -> TransferTask:
        """The task with these fields in all trainings, where it does not set them itself."""
        grid = self.grid._replace(common={**fields, **self.grid.common})
        return dataclasses.replace(self, grid=grid)

    def derived_fields(self) -> dict[str, str]:
        """The fields that a config which adapts derives from all of the training data.

        From a part of the data it would derive others: the choice would be one for another recipe.
        """
        if config_file.adapt(self.grid.common[CONFIG]) is None:
            return {}
        values = {field: strict.values_at(self.config, field)[0][1] for field in DERIVED}
        return {
            field: str(value)
            for field, value in values.items()
            if field not in self.grid.axes and value is not None  # total.steps excludes epochs
        }

    @property
    def from_scratch(self) -> bool:
        return self.checkpoint.lower() == NO_CHECKPOINT


class Splits(NamedTuple):
    """The parts of the training data: all of it, and the two for choosing; "": not needed."""

    final: str
    choose: str
    held_out: str


def check(task: TransferTask) -> None:
    """Raises UserError if the task is wrong in itself; neither data nor weights are looked at."""
    for point in task.grid.points():
        task.grid.load(point)
    config, part = task.config, task.held_out_part
    named = [split is not None for split in (task.choose_split, task.held_out_split)]
    several = any(named) and (task.held_out is not None or not all(named))
    bad_part = not part > 0 or part == 1 or (part > 1 and part % 1)
    nameless = task.from_scratch and config.model.name is None
    mixed = config.input.mixture or config.input.pseudo_labels
    no_ema = task.ema and config.optim.ema_decay is None
    axes = [f for f in task.grid.axes if f in _NOT_CHOSEN or f.startswith("evals.")]
    chosen = f"has a list of values: see --seeds and --choose_seeds. {grids.HINT}"
    for is_wrong, field, rule in (
        (axes, ", ".join(axes), chosen),
        (several, "--held_out", "excludes --choose_split and --held_out_split, which need both."),
        (bad_part, f"--held_out={part:g}", "is neither a fraction nor a number from 2 on."),
        ("init.weights" in task.grid.common, "init.weights", "is what --checkpoint sets."),
        (nameless, f"--checkpoint={task.checkpoint}", "takes --config.model.name=ViT-Ti/16."),
        (mixed, "input.mixture and input.pseudo_labels", "cannot be held out from."),
        (no_ema, "--ema", "needs an EMA of the weights: --config.optim.ema_decay=0.999."),
    ):
        if is_wrong:
            raise UserError(rule, field=field)
    evaluation_of(task)


def evaluation_of(task: TransferTask) -> str:
    known = grids.evaluation_numbers(task.config)
    having = [name for name, numbers in known.items() if task.metric in numbers]
    if task.evaluation in having or (task.evaluation is None and len(having) == 1):
        return task.evaluation or having[0]
    if not having:
        cure = nearest(task.metric, {number for numbers in known.values() for number in numbers})
        rule = "is a number of no evaluation of the config."
        raise UserError(rule, field="--metric", value=task.metric, cure=cure)
    rule = f"has to name the test, of the evaluations with {task.metric!r}: {', '.join(having)}."
    raise UserError(rule, field="--evaluation", value=task.evaluation)


def metric_key(task: TransferTask, evaluation: str) -> str:
    """The name in metrics.jsonl of the number to choose by: "held_out/accuracy"."""
    return f"{evaluation}{EMA_ENDING if task.ema else ''}/{task.metric}"


def choose_grid(task: TransferTask, splits: Splits, weights: str | None) -> SweepGrid:
    """The sweep to choose by: every point of the lists, without the held-out part of the data."""
    test, evaluations = task.config.evals[evaluation_of(task)], _evaluations(task)
    held_out = dataclasses.replace(
        test,
        source=None,
        data_dir=None,
        label=None,
        labels=None,
        classes=None,
        split=splits.held_out,
    )
    common = _common(task, weights) | {
        "input.split": splits.choose,
        "input.num_examples": "none",  # declared for all of the data
        **{f"evals.{name}": "none" for name in evaluations if name != HELD_OUT},
        **dict(_fields(f"evals.{HELD_OUT}", held_out, every=HELD_OUT in evaluations)),
    }
    first, *others = seeds = _seeds(task, task.choose_seeds)
    common, more = (common, {SEED: seeds}) if others else (common | {SEED: first}, {})
    return task.grid._replace(common=common, axes=task.grid.axes | more)


def final_grid(
    task: TransferTask, splits: Splits, weights: str | None, chosen: dict[str, str]
) -> SweepGrid:
    """The trainings of the result: the chosen values, all of the data, several seeds."""
    test = evaluation_of(task)
    common = _common(task, weights) | {
        **chosen,
        "input.split": splits.final,
        **{f"evals.{name}": "none" for name in _evaluations(task) if name != test},
        **{f: v for f, v in task.grid.common.items() if f.startswith(f"evals.{test}.")},
        f"evals.{test}.every_steps": "none",  # only after the last step
    }
    # An axis even if there is one: others may be added later.
    return task.grid._replace(common=common, axes={SEED: _seeds(task, task.seeds)})


def _evaluations(task: TransferTask) -> list[str]:
    """Names of all evaluations, also of those of the config file that the task removes."""
    removed = [
        field.removeprefix("evals.")
        for field, value in task.grid.common.items()
        if field.startswith("evals.") and field.count(".") == 1 and strict.says_none(value)
    ]
    return [*task.config.evals, *removed]


def _common(task: TransferTask, weights: str | None) -> dict[str, str]:
    config = task.config
    kept = {
        field: value
        for field, value in task.grid.common.items()
        if not field.startswith("evals.") and field != SEED
    }
    init = {"init.weights": "none" if weights is None else weights}
    if weights is None:  # other fields of init would go unread
        init |= {
            f"init.{field.name}": _format_value(field.default)
            for field in dataclasses.fields(config.init)
            if getattr(config.init, field.name) != field.default
        }
    values = {field: strict.values_at(config, field)[0][1] for field in PEEKING}
    no_peeking = {field: "none" for field, value in values.items() if value}
    return kept | init | no_peeking


def _seeds(task: TransferTask, number: int) -> tuple[str, ...]:
    return tuple(str(task.config.seed + place) for place in range(number))


def _fields(section: str, values: EvalConfig, *, every: bool) -> Iterator[tuple[str, str]]:
    """Overrides that set a section to these values: `every` one, else what is not the default."""
    for field in dataclasses.fields(values):
        value = getattr(values, field.name)
        if every or value != field.default or field.name == "split":
            yield f"{section}.{field.name}", _format_value(value)


def _format_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "none" if value is None else str(list(value) if isinstance(value, tuple) else value)


def check_all(
    task: TransferTask, weights: str | None, folder: epath.Path
) -> tuple[Splits, list[str]]:
    """Checks data, weights and folder before any training; the splits, and what is worth knowing.

    No accelerator is touched: the trainings, in processes of their own, need all of it.
    """
    sweeps.use_cpu_only()
    errors = ErrorCollector()
    config = task.config
    check_folders(config)
    parts = errors.attempt("input", find_splits, task)
    notes: list[str] = []
    if parts is not NOT_MADE and parts.choose:
        notes = errors.attempt("input", _check_classes, task, parts)
        sweeps.check_values(choose_grid(task, parts, weights), folder / CHOOSE, errors)
    whole = Splits(config.input.split, "", "") if parts is NOT_MADE else parts
    final = final_grid(task, whole, weights, task.grid.points()[0]).load()
    sweeps.check_config(final, folder / FINAL, errors)
    errors.raise_all()
    return parts, notes


def find_splits(task: TransferTask) -> Splits:
    """The splits of a transfer; held out is the end of input.split, as the data are stored."""
    c, evaluation = task.config.input, evaluation_of(task)
    test = task.config.evals[evaluation]
    if c.source in table.WITHOUT_SPLITS:
        raise UserError("has no splits to hold out.", field="input.source", value=c.source)
    whole = _slices(c, c.split, "input")
    if not task.grid.axes:
        found = Splits(c.split, "", "")
    elif task.choose_split is not None and task.held_out_split is not None:
        found = Splits(c.split, task.choose_split, task.held_out_split)
    else:
        found = Splits(c.split, *_divide(whole, task.held_out_part, c.split))
    choose = _slices(c, found.choose, "input")
    held_out = _slices(c, found.held_out, f"evals.{HELD_OUT}")
    same_folder = _real_path(test.data_dir or c.data_dir) == _real_path(c.data_dir)
    is_same = same_folder and (test.source or c.source) == c.source
    tested = _slices(c, test.split, f"evals.{evaluation}") if is_same else []
    for one, other, what, other_what in (
        (held_out, choose, f"--held_out_split={found.held_out}", f"--choose_split={found.choose}"),
        (tested, whole, f"The test, {test.split},", f"input.split={c.split}"),
        (tested, choose, f"The test, {test.split},", f"--choose_split={found.choose}"),
        (tested, held_out, f"The test, {test.split},", f"--held_out_split={found.held_out}"),
    ):
        if splits.overlap(one, other):
            rule = f"shares examples with {other_what}: its accuracy would be too good."
            raise UserError(rule, field=what, cure="Give splits without common examples.")
    return found


def _real_path(folder: str | None) -> str:
    path = files.expanded(folder or "")
    return path if is_remote(path) else os.path.realpath(path)


def _divide(whole: Sequence[Slice], held_out: float, split: str) -> tuple[str, str]:
    """The splits without the held-out end of `whole`, and with that alone."""
    n = sum(part.num_examples for part in whole)
    number = round(held_out * n) if held_out < 1 else int(held_out)
    if not 1 <= number < n:
        rule = f"means {number:,} of the {n:,} examples of input.split={split}, not 1 to {n - 1:,}."
        raise UserError(rule, field="--held_out", value=f"{held_out:g}")
    kept, held, left = list[str](), list[str](), n - number
    for name, start, stop in whole:
        middle = min(start + left, stop)
        left -= middle - start
        kept += [f"{name}[{start}:{middle}]"] if start < middle else []
        held += [f"{name}[{middle}:{stop}]"] if middle < stop else []
    return "+".join(kept), "+".join(held)


def _slices(c: InputConfig, split: str, where: str) -> list[Slice]:
    requests = [
        table.Request(part, c.data_dir, label=c.label, table=examples.table_options(c), where=where)
        for part in splits.parts(split)
        if split
    ]
    slices = [table.create(c.source, request).part for request in requests]
    return [part for part in slices if part is not None]


def _check_classes(task: TransferTask, parts: Splits) -> list[str]:
    replace = dataclasses.replace
    c = replace(task.config.input, num_examples=None)
    # An evaluation reads no subset.
    rest = replace(c, subset_fraction=None, subset_examples=None, subset_per_class=None)
    whole = examples.source(replace(c, split=parts.final))
    choose = examples.source(replace(c, split=parts.choose))
    held_out = examples.source(replace(rest, split=parts.held_out))
    there, left, scored = (_counts(source) for source in (whole, choose, held_out))
    emptied = np.flatnonzero((there > 0) & (left == 0))
    notes = []
    if len(emptied):
        what = f"{_describe_classes(whole, emptied)} without an example to train on while choosing"
        if task.choose_split is None:
            cure = "Give a smaller one, or --choose_split and --held_out_split."
            part = f"{task.held_out_part:g}"
            raise UserError(f"leaves {what}.", field="--held_out", value=part, cure=cure)
        notes.append(f"{parts.choose} leaves {what}")
    unscored = np.flatnonzero((there > 0) & (scored == 0))
    if len(unscored):
        what = _describe_classes(whole, unscored)
        notes.append(f"{parts.held_out} leaves {what} without one to choose by")
    return notes


def _counts(source: Source) -> np.ndarray:
    """int64 [C]: the number of examples of each class."""
    screen = Screen()
    labels = label_index.find(source, lambda done, of: screen.bar("reading labels", done, of))
    by_class = label_index.by_class(labels, source.num_classes, describe=source.describe)
    return np.diff(by_class.offsets)


def _describe_classes(source: Source, classes: np.ndarray) -> str:
    """ "2 of 10 classes (cat, dog)"."""
    names = source.class_names or [str(number) for number in range(source.num_classes)]
    shown = ", ".join(names[i] for i in classes[:MAX_NAMED])
    more = ", ..." if len(classes) > MAX_NAMED else ""
    return f"{len(classes):,} of {source.num_classes:,} classes ({shown}{more})"
