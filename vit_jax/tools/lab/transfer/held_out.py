"""The part of the training split that is held out for choosing, and the checks before a transfer.

Whatever is opened here says which examples there are, by names, counts and the training split's
labels. No image of the test is read, nor a label of it.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from etils import epath

from vit_jax.config import InputConfig, RunConfig
from vit_jax.core.errors import NOT_MADE, ErrorCollector, UserError
from vit_jax.core.screen import Screen
from vit_jax.data.order import label_index
from vit_jax.data.source import Source
from vit_jax.data.sources import splits, table
from vit_jax.data.sources.splits import Slice
from vit_jax.run.build import Run, check_folders
from vit_jax.run.parts import examples
from vit_jax.tools.lab.sweep import preflight as sweep_preflight
from vit_jax.tools.lab.transfer import task as tasks
from vit_jax.tools.lab.transfer.task import HELD_OUT, Splits, TransferTask

MAX_NAMED = 3  # classes in a message


def look(task: TransferTask, weights: str | None, folder: epath.Path) -> tuple[Splits, list[str]]:
    """Checks data, weights and folder before any training; the splits, and what is worth knowing.

    No accelerator is touched: the trainings, in processes of their own, need all of it.

    Raises:
      UserError: data or weights are missing or do not fit; the held-out part leaves a class without
        an example to train on, or shares examples with what is trained on; lists all errors.
    """
    sweep_preflight.leave_devices_alone()
    errors = ErrorCollector()
    config = tasks.base_config(task)
    check_folders(config)
    parts = errors.attempt("input", find, task, config)
    notes: list[str] = []
    if parts is not NOT_MADE and parts.choose:
        notes = errors.attempt("input", _check_classes, task, config, parts)
        choose_grid = tasks.choose_grid(task, parts, weights)
        sweep_preflight.look(choose_grid, folder / "choose", errors)
    whole = Splits(config.input.split, "", "") if parts is NOT_MADE else parts
    first = task.grid.points()[0]
    final = sweep_preflight.configs_of(tasks.final_grid(task, whole, weights, first))[0]
    Run.attempt(sweep_preflight.anywhere(final), folder / "final", errors)
    errors.raise_all()
    return parts, notes


def find(task: TransferTask, config: RunConfig) -> Splits:
    """The splits of a transfer.

    A part that is held out by a fraction or number is the end of input.split, in the order in which
    the data are stored: which examples it has depends on neither a seed nor the labels.

    Raises:
      UserError: a split is not there, or leaves nothing; two of them share examples where they must
        not.
    """
    c, test = config.input, config.evals[tasks.evaluation_of(task, config)]
    if c.source in table.WITHOUT_SPLITS:
        raise UserError(f"input.source={c.source!r} has no splits: nothing of it can be held out.")
    whole = _slices(c, c.split, "input")
    if not task.grid.axes:
        found = Splits(c.split, "", "")
    elif task.choose_split is not None and task.held_out_split is not None:
        found = Splits(c.split, task.choose_split, task.held_out_split)
    else:
        found = Splits(c.split, *_divided(whole, task.held_out_part, c.split))
    choose = _slices(c, found.choose, "input")
    held_out = _slices(c, found.held_out, f"evals.{HELD_OUT}")
    if _overlap(choose, held_out):
        raise UserError(
            f"--held_out_split={found.held_out} shares examples with --choose_split="
            f"{found.choose}: a choice by examples that were trained on favours what has learnt "
            "them by heart. Give splits without common examples."
        )
    own_data = (test.source or c.source, test.data_dir or c.data_dir) == (c.source, c.data_dir)
    if own_data:
        tested = _slices(c, test.split, f"evals.{tasks.evaluation_of(task, config)}")
        for what, part in (
            (f"input.split={c.split}", whole),
            (f"--choose_split={found.choose}", choose),
            (f"--held_out_split={found.held_out}", held_out),
        ):
            if _overlap(tested, part):
                raise UserError(
                    f"The test, {test.split}, shares examples with {what}: its accuracy would be "
                    "too good. Give the evaluation a split of its own; what to choose by is held "
                    "out of input.split by itself."
                )
    return found


def _divided(whole: Sequence[Slice], held_out: float, split: str) -> tuple[str, str]:
    """The splits without the held-out end of `whole`, and with that alone."""
    n = sum(part.num_examples for part in whole)
    number = round(held_out * n) if held_out < 1 else int(held_out)
    if not 1 <= number < n:
        raise UserError(
            f"--held_out={held_out:g} means {number:,} of the {n:,} examples of input.split={split}"
            f": give at least 1 and at most {n - 1:,}."
        )
    kept, held, left = list[str](), list[str](), n - number
    for name, start, stop in whole:
        middle = min(start + left, stop)
        left -= middle - start
        kept += [f"{name}[{start}:{middle}]"] if start < middle else []
        held += [f"{name}[{middle}:{stop}]"] if middle < stop else []
    return "+".join(kept), "+".join(held)


def _slices(c: InputConfig, split: str, where: str) -> list[Slice]:
    """The slices that a split of the training data means. UserError if one is not there."""
    opened = [
        table.create(
            c.source,
            data_dir=c.data_dir,
            split=part,
            num_examples=None,
            num_classes=None,
            image_size=(1, 1),
            label=c.label,
            where=where,
        ).part
        for part in splits.parts(split)
        if split
    ]
    return [part for part in opened if part is not None]


def _overlap(some: Sequence[Slice], others: Sequence[Slice]) -> bool:
    return any(
        a.name == b.name and a.start < b.stop and b.start < a.stop for a in some for b in others
    )


def _check_classes(task: TransferTask, config: RunConfig, parts: Splits) -> list[str]:
    """Notes on classes without examples. UserError if holding out takes all examples of one."""
    named = task.choose_split is not None
    c = dataclasses.replace(config.input, num_examples=None)
    whole = examples.source(dataclasses.replace(c, split=parts.final))
    choose = examples.source(dataclasses.replace(c, split=parts.choose))
    rest = dataclasses.replace(c, split=parts.held_out)  # an evaluation reads no subset of it
    rest = dataclasses.replace(rest, subset_fraction=None, subset_examples=None)
    held_out = examples.source(dataclasses.replace(rest, subset_per_class=None))
    there, left, scored = (_counts(source) for source in (whole, choose, held_out))
    emptied = np.flatnonzero((there > 0) & (left == 0))
    notes = []
    if len(emptied):
        what = f"{_named(whole, emptied)} without an example to train on while choosing"
        if not named:
            raise UserError(
                f"--held_out={task.held_out_part:g} leaves {what}: all of them are in the "
                f"held-out {parts.held_out}. {_remedy(whole)}"
            )
        notes.append(f"{parts.choose} leaves {what}")
    unscored = np.flatnonzero((there > 0) & (scored == 0))
    if len(unscored):
        notes.append(f"{parts.held_out} leaves {_named(whole, unscored)} without one to choose by")
    return notes


def _counts(source: Source) -> np.ndarray:
    """int64 [C]: the number of examples of each class."""
    screen = Screen()
    labels = label_index.find(source, lambda done, of: screen.bar("reading labels", done, of))
    by_class = label_index.by_class(labels, source.num_classes, describe=source.describe)
    return np.diff(by_class.offsets)


def _named(source: Source, classes: np.ndarray) -> str:
    """ "2 of 10 classes (cat, dog)"."""
    names = source.class_names or [str(number) for number in range(source.num_classes)]
    shown = ", ".join(names[i] for i in classes[:MAX_NAMED])
    more = ", ..." if len(classes) > MAX_NAMED else ""
    return f"{len(classes):,} of {source.num_classes:,} classes ({shown}{more})"


def _remedy(whole: Source) -> str:
    """What to hold out instead: at most what comes behind each class's first example."""
    labels = label_index.find(whole)
    classes, first = np.unique(labels.labels, return_index=True)
    del classes
    most = whole.num_examples - 1 - int(labels.examples()[first].max())
    splits_instead = "or give --choose_split and --held_out_split"
    if most < 1 or most < whole.num_examples // 20:
        return (
            "The examples seem to be sorted by class: write the data in random order, as "
            f"`prepare` does, {splits_instead}."
        )
    return f"Give --held_out={most} or less, {splits_instead}."
