"""A run over VTAB's tasks: each is a transfer of its own, in a folder of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from etils import epath

from vit_jax import weights
from vit_jax.core.errors import ErrorCollector, UserError
from vit_jax.core.files import parse_json, write_text
from vit_jax.store import workdir
from vit_jax.tools.lab.sweep import grid
from vit_jax.tools.lab.sweep import run as sweeps
from vit_jax.tools.lab.sweep.options import SweepOptions
from vit_jax.tools.lab.transfer import held_out, protocol, results
from vit_jax.tools.lab.transfer import task as transfers
from vit_jax.tools.lab.transfer.results import OverSeeds
from vit_jax.tools.lab.transfer.task import TransferTask
from vit_jax.tools.lab.vtab import data, page
from vit_jax.tools.lab.vtab.data import TaskData
from vit_jax.tools.lab.vtab.summary import TaskResult, VtabSummary
from vit_jax.tools.lab.vtab.table import TASKS, find

FILE, JSON_FILE, CSV_FILE = "vtab.json", "results.json", "results.csv"
ACCURACY = "test/accuracy"

Say = Callable[[str], None]


class VtabRun(NamedTuple):
    """What is asked for.

    Attributes:
      checkpoint: what training starts from, as init.weights; NO_CHECKPOINT: random parameters.
      config: the config file, whose variants are the tasks; "configs/vtab.py:size=384" adds one.
      overrides: of all tasks; commas separate the values to choose from: "optim.lr=0.003,0.01".
      root: TFDS's folder.
      tasks: names; left_out: names that are not run. Both empty: all 19.
      seeds: of the trainings that are tested; choose_seeds: of each point to choose from.
    """

    checkpoint: str
    config: str
    overrides: tuple[str, ...]
    root: str
    tasks: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    seeds: int = 3
    choose_seeds: int = 1

    def names(self) -> list[str]:
        """The tasks to run, in the table's order. UserError for names that are not there."""
        for name in (*self.tasks, *self.left_out):
            find(name)
        both = sorted(set(self.tasks) & set(self.left_out))
        if both:
            raise UserError(f"--tasks and --leave_out both name {', '.join(both)}.")
        wanted = [n for n in TASKS if n not in self.left_out and n in (self.tasks or TASKS)]
        if not wanted:
            raise UserError("--leave_out leaves no task of VTAB.")
        return wanted


def vtab(
    folder: epath.Path,
    asked: VtabRun,
    options: SweepOptions,
    *,
    trainer: Sequence[str] = (sys.executable, *sweeps.TRAIN),
    say: Say = print,
) -> VtabSummary:
    """Does what is left to do, one task after the other, and shows the result.

    The data of all tasks are looked at before the first begins. After each, results.json,
    results.csv and results.html are written. Called again it goes on.

    Raises:
      UserError: data are missing, or anything else is wrong, before any training; or trainings of
        some tasks have failed, after all others are done.
      Preempted: on a signal; what ran has saved.
    """
    names = asked.names()
    found = data.look(names, asked.root)
    pinned = _begin(folder, asked)
    tasks = {name: transfer_task(asked, name, found[name], pinned) for name in names}
    _check(folder, tasks, pinned)
    summary = VtabSummary(asked.checkpoint, pinned, asked.config, [], names)
    for number, (name, task) in enumerate(tasks.items(), start=1):
        say(f"task     {name}, {number} of {len(names)}, of {found[name].name}")
        of_task, why = options._replace(name=f"{options.name}-{name}"), ""
        try:
            protocol.transfer(folder / name, task, of_task, trainer=trainer, say=say)
        except UserError as error:
            why = str(error)
        summary.results.append(_result(folder / name, name, task, found[name], pinned, why))
        _write(folder, summary)
    for line in summary.lines():
        say(line)
    say(f"saved    {folder / page.FILE}")
    failed = [f"\n  {each.name}: {each.why}" for each in summary.results if each.why]
    if failed:
        raise UserError(f"{len(failed)} of {len(names)} tasks did not finish:{''.join(failed)}")
    return summary


def dry_run(folder: epath.Path, asked: VtabRun, options: SweepOptions, say: Say = print) -> None:
    """Checks all that `vtab` checks at its start, and shows the commands of the trainings."""
    names = asked.names()
    found = data.look(names, asked.root)
    pinned = protocol.pinned(asked.checkpoint)
    for name in names:
        say(f"task     {name}, of {found[name].name}")
        task = transfer_task(asked, name, found[name], pinned)
        protocol.dry_run(folder / name, task, options, say)


def transfer_task(asked: VtabRun, name: str, found: TaskData, pinned: str | None) -> TransferTask:
    """The transfer of a task, by the benchmark's splits; pixels are normalised as the weights say.

    The overrides that are asked for come last, and win.
    """
    task = TASKS[name]
    file, _, variant = asked.config.partition(":")
    config = f"{file}:{name}" + (f",{variant}" if variant else "")
    overrides = [f"input.data_dir={found.folder}", *_normalisation(pinned), *asked.overrides]
    return TransferTask(
        pinned or transfers.NO_CHECKPOINT,
        grid.of_config(config, overrides),
        choose_split=task.train,
        held_out_split=task.held_out,
        evaluation="test",
        seeds=asked.seeds,
        choose_seeds=asked.choose_seeds,
    )


def _normalisation(pinned: str | None) -> list[str]:
    """Overrides for pixels as the weights were trained on them."""
    if pinned is None:
        return []
    about = weights.checkpoint_info(pinned).preprocess
    return [f"input.mean={list(about.mean)}", f"input.std={list(about.std)}"]


def _begin(folder: epath.Path, asked: VtabRun) -> str | None:
    """The checkpoint: as the run began, else pinned now. UserError for another run's folder."""
    fixed = {"checkpoint": asked.checkpoint, "config": asked.config}
    try:
        there = dict(parse_json((folder / FILE).read_bytes()))
        pinned = there.pop("weights")
    except FileNotFoundError:
        there, pinned = fixed, protocol.pinned(asked.checkpoint)
        workdir.make(folder)
        _save(folder / FILE, json.dumps(fixed | {"weights": pinned}, indent=2) + "\n")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{folder / FILE} is damaged ({error}). Delete it, and run again."
        ) from error
    for field, value in fixed.items():
        if there.get(field) != value:
            raise UserError(
                f"{folder} belongs to another run of VTAB: {field} is {there.get(field)!r} there, "
                f"{value!r} here. Give another --workdir."
            )
    return pinned


def _check(folder: epath.Path, tasks: dict[str, TransferTask], pinned: str | None) -> None:
    """UserError with all that is wrong with the tasks that have not been begun."""
    errors = ErrorCollector()
    for name, task in tasks.items():
        if not (folder / name / protocol.FILE).exists():
            errors.attempt(name, transfers.check, task)
            errors.attempt(name, held_out.look, task, pinned, folder / name)
    errors.raise_all()


def _result(
    folder: epath.Path, name: str, task: TransferTask, found: TaskData, pinned: str | None, why: str
) -> TaskResult:
    document = results.read(folder) or {}
    test = document.get("test", {}).get(ACCURACY)
    chosen = document.get("choice", {}).get("chosen", {})
    choices = _choices(name, task, found, pinned)
    return TaskResult(name, test and OverSeeds(**test), chosen, choices, why, str(folder))


def _choices(name: str, task: TransferTask, found: TaskData, pinned: str | None) -> dict[str, str]:
    """What the number of a task depends on and reports of VTAB differ in."""
    config, vtab_task = transfers.base_config(task), TASKS[name]
    mean, std = config.input.mean, config.input.std
    of_weights = _normalisation(pinned)
    same = of_weights == [f"input.mean={list(mean)}", f"input.std={list(std)}"]
    whose = "the weights' own" if same else "not the weights'" if of_weights else "no weights"
    absent = f"; {found.absent} of {vtab_task.num_classes} classes absent" if found.absent else ""
    ops = config.evals["test"].preprocess
    augmented = "" if ops == config.input.preprocess else f"; in training {config.input.preprocess}"
    return {
        "data": found.name + (f" ({found.changed})" if found.changed else ""),
        "images": found.images(vtab_task),
        "preprocessing": f"{ops}{augmented}",
        "normalisation": f"(pixel - {_spell(mean)}) / {_spell(std)}: {whose}",
        "training": f"{config.input.split}: first in TFDS's order, not stratified{absent}",
        "test": f"{config.evals['test'].split}, top-1",
    }


def _spell(values: Sequence[float]) -> str:
    """One number where all are the same."""
    return f"{values[0]:g}" if len(set(values)) == 1 else str([round(v, 4) for v in values])


def _write(folder: epath.Path, summary: VtabSummary) -> None:
    _save(folder / JSON_FILE, json.dumps(summary.document(), indent=2) + "\n")
    _save(folder / CSV_FILE, summary.csv())
    _save(folder / page.FILE, page.page(folder.name, summary))


def _save(path: epath.Path, text: str) -> None:
    try:
        write_text(path, text)
    except OSError as error:
        raise workdir.unwritable(path.parent, error) from error
