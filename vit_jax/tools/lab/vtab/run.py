"""Fine-tunes a model on the 19 tasks of VTAB-1k, and gives the means of their groups.

    vit-jax vtab --checkpoint WEIGHTS --config configs/vtab.py --data TFDS \\
      --workdir runs/vtab --config.optim.lr=0.003,0.01,0.03

Each task is a transfer of its own (vit-jax transfer), by the benchmark's splits: commas
separate the values to choose from, on 200 of the thousand examples. What data are missing is told
before anything starts. The same command again goes on.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import flags
from etils import epath

from vit_jax import weights
from vit_jax.core import command
from vit_jax.core.errors import ErrorCollector, UserError, nearest
from vit_jax.data import files, label_index
from vit_jax.data.source import Source
from vit_jax.data.sources import table as sources
from vit_jax.data.sources import tfds
from vit_jax.store import workdir, workdir_lock
from vit_jax.tools.lab.sweep import grid
from vit_jax.tools.lab.sweep import run as sweeps
from vit_jax.tools.lab.sweep.slots import SweepOptions
from vit_jax.tools.lab.transfer import run as transfers
from vit_jax.tools.lab.transfer import task as tasks
from vit_jax.tools.lab.transfer.task import NO_CHECKPOINT, TransferTask
from vit_jax.tools.lab.vtab.summary import TaskResult, VtabSummary
from vit_jax.tools.lab.vtab.table import JPEG, PNG, TASKS, VtabTask

FILE = "vtab.json"
ACCURACY = "test/accuracy"
_MAGIC = {b"\xff\xd8\xff": JPEG, b"\x89PNG": PNG}
_LOOKED_AT = 100  # images


class TaskData(NamedTuple):
    folder: str  # the folder with dataset_info.json
    name: str  # the data set and its version, "cifar100 3.0.2"
    changed: str  # how it differs from the benchmark's; "" if it does not, as far as was looked
    formats: tuple[str, ...]  # the formats of the first training images, most frequent first
    absent: int  # classes without an example among the thousand

    def images(self, task: VtabTask) -> str:
        """The bytes that were read, in words."""
        there = " and ".join(self.formats)
        if set(self.formats) == {task.stored}:
            return f"{there}, as TFDS stores them"
        return f"{there} where TFDS stores {task.stored}: not the original images"


def find_data(names: Sequence[str], root: str) -> dict[str, TaskData]:
    """The data of these tasks below `root`, the data_dir of TFDS; nothing of a test is read."""
    folders = {name: _folder(TASKS[name], root) for name in names}
    if missing := [name for name, folder in folders.items() if folder is None]:
        first, *others = dict.fromkeys(TASKS[name].folder for name in missing)
        make = f"tfds.builder('{first}', data_dir='{root}').download_and_prepare()"
        cure = f"TFDS makes each, as {make}. Or give --leave_out={','.join(missing)}"
        rule = f"lacks {', '.join([first, *others])}."
        raise UserError(rule, field="--data", value=root, cure=cure)
    errors = ErrorCollector()
    data = {name: errors.attempt(name, _inspect, name, str(folders[name])) for name in names}
    errors.raise_all()
    return data


def _folder(task: VtabTask, root: str) -> str | None:
    try:
        return tfds.find_folder(files.join(root, *task.folder.split("/")), where="--data")
    except UserError:
        return None


def _inspect(name: str, folder: str) -> TaskData:
    task = TASKS[name]
    info = tfds.read_info(folder)
    sizes = {split: each.num_examples for split, each in info.splits.items()}
    request = sources.Request(
        task.train_held_out, folder, num_classes=task.num_classes, label=task.label, where=name
    )
    source = sources.create("tfds", request)
    absent = task.num_classes - len(np.unique(label_index.find(source).labels))
    differences = _differences(task, str(info.version), sizes)
    return TaskData(folder, f"{task.folder} {info.version}", differences, _formats(source), absent)


def _differences(task: VtabTask, version: str, sizes: Mapping[str, int]) -> str:
    differences = []
    if int(version.split(".", maxsplit=1)[0]) != task.version:
        differences.append(f"the benchmark reads version {task.version}")
    for split, size in task.sizes.items():
        if sizes.get(split) != size:
            differences.append(f"{sizes.get(split, 0):,} in {split} instead of {size:,}")
    return "; ".join(differences)


def _formats(source: Source) -> tuple[str, ...]:
    examples = source.read(np.arange(min(_LOOKED_AT, source.num_examples)))
    counts = Counter(
        next((name for magic, name in _MAGIC.items() if example.image.startswith(magic)), "others")
        for example in examples
    )
    return tuple(name for name, _ in counts.most_common())


class VtabRun(NamedTuple):
    """A requested run over the tasks, by the flags of the command."""

    checkpoint: str  # what training starts from, as init.weights; NO_CHECKPOINT: random parameters
    # The config file, whose variants are the tasks; "configs/vtab.py:size=384" adds one.
    config: str
    config_override: Sequence[str]  # of all tasks; commas separate the values to choose from
    data: str  # TFDS's folder
    tasks: Sequence[str] = ()  # names; leave_out: names that are not run. Both empty: all 19
    leave_out: Sequence[str] = ()
    seeds: int = 3  # of the trainings that are tested; choose_seeds: of each point to choose from
    choose_seeds: int = 1

    def names(self) -> list[str]:
        named = [*self.tasks, *self.leave_out]
        rules = [f"VTAB has no task {n!r}. {nearest(n, TASKS)}" for n in named if n not in TASKS]
        wanted = [n for n in TASKS if n not in self.leave_out and n in (self.tasks or TASKS)]
        if rules or not wanted:
            raise UserError([*rules, "--leave_out leaves no task."][0])
        return wanted


def vtab(folder: epath.Path, request: VtabRun, options: SweepOptions) -> VtabSummary:
    """Runs the tasks that are left, one after the other, and prints the result.

    The data of all tasks are looked at before the first begins. After each, results.json,
    results.csv and results.html are written. Called again it goes on.
    """
    names = request.names()
    data = find_data(names, request.data)
    record = _begin(folder, request)  # before anything is written
    pinned = record["weights"]
    wanted = {name: transfer_task(request, name, data[name], pinned) for name in names}
    _check(folder, wanted, pinned)
    with workdir_lock.lock_for_process(folder):
        workdir.save_json(folder / FILE, record)
        summary = VtabSummary(request.checkpoint, pinned, request.config, [], names)
        for number, (name, task) in enumerate(wanted.items(), start=1):
            print(f"task     {name}, {number} of {len(names)}, of {data[name].name}")
            result = None
            try:
                result = transfers.transfer(folder / name, task, options.for_part(name))
                why = "\n".join(result.failures)
            except UserError as error:
                why = str(error)
            choices = _choices(name, task, data[name], pinned)
            accuracy = result.test.get(ACCURACY) if result else None
            chosen = result.choice.chosen if result else {}
            place = str(folder / name)
            summary.results.append(TaskResult(name, accuracy, chosen, choices, why, place))
            page = summary.page(folder.name)
            sweeps.save_results(folder, summary.document(), summary.table(), page)
    sweeps.show_results(folder, summary.lines())
    return summary


def dry_run(folder: epath.Path, request: VtabRun, options: SweepOptions) -> None:
    """Checks what `vtab` checks at its start, and prints the commands of the trainings."""
    names = request.names()
    data = find_data(names, request.data)
    pinned = transfers.pin_checkpoint(request.checkpoint)
    for name in names:
        print(f"task     {name}, of {data[name].name}")
        task = transfer_task(request, name, data[name], pinned)
        transfers.dry_run(folder / name, task, options.for_part(name))


def transfer_task(request: VtabRun, name: str, data: TaskData, pinned: str | None) -> TransferTask:
    """The transfer of a task, by the benchmark's splits; overrides that are asked for win."""
    task = TASKS[name]
    file, _, variant = request.config.partition(":")
    config = f"{file}:{name}" + (f",{variant}" if variant else "")
    overrides = [f'input.data_dir="{data.folder}"', *_normalisation(pinned)]
    return TransferTask(
        pinned or NO_CHECKPOINT,
        grid.from_config(config, [*overrides, *request.config_override]),
        choose_split=task.train,
        held_out_split=task.held_out,
        evaluation="test",
        seeds=request.seeds,
        choose_seeds=request.choose_seeds,
    )


def _normalisation(pinned: str | None) -> list[str]:
    if pinned is None:
        return []
    about = weights.checkpoint_info(pinned).preprocess
    return [f"input.mean={list(about.mean)}", f"input.std={list(about.std)}"]


def _begin(folder: epath.Path, request: VtabRun) -> dict[str, Any]:
    fixed = {"checkpoint": request.checkpoint, "config": request.config}
    kept = workdir.read_json(folder / FILE, dict, "Move it away, and run again.")
    if kept is None:
        kept = fixed | {"weights": transfers.pin_checkpoint(request.checkpoint)}
    grid.check_same(folder, "run of VTAB", {f: kept.get(f) for f in fixed}, fixed)
    return kept


def _check(folder: epath.Path, wanted: dict[str, TransferTask], pinned: str | None) -> None:
    errors = ErrorCollector()
    for name, task in wanted.items():
        if not (folder / name / transfers.FILE).exists():
            errors.attempt(name, tasks.check, task)
            errors.attempt(name, tasks.check_all, task, pinned, folder / name)
    errors.raise_all()


def _choices(name: str, task: TransferTask, data: TaskData, pinned: str | None) -> dict[str, str]:
    """Returns the choices that a task's number depends on, as reports of VTAB differ in them."""
    config, vtab_task = task.config, TASKS[name]
    mean, std = config.input.mean, config.input.std
    own = _normalisation(pinned)
    same = own == [f"input.mean={list(mean)}", f"input.std={list(std)}"]
    whose = "the weights' own" if same else "not the weights'" if own else "no weights"
    absent = f"; {data.absent} of {vtab_task.num_classes} classes absent" if data.absent else ""
    ops = config.evals["test"].preprocess
    augmented = "" if ops == config.input.preprocess else f"; in training {config.input.preprocess}"
    return {
        "data": data.name + (f" ({data.changed})" if data.changed else ""),
        "images": data.images(vtab_task),
        "preprocessing": f"{ops}{augmented}",
        "normalisation": f"(pixel - {_format_pixel(mean)}) / {_format_pixel(std)}: {whose}",
        "training": f"{config.input.split}: first in TFDS's order, not stratified{absent}",
        "test": f"{config.evals['test'].split}, top-1",
    }


def _format_pixel(values: Sequence[float]) -> str:
    return f"{values[0]:g}" if len(set(values)) == 1 else str([round(v, 4) for v in values])


FLAGS = flags.FLAGS


def main(_: list[str]) -> None:
    folder, options = sweeps.read_flags()
    request = VtabRun(**command.values(*VtabRun._fields))
    sweeps.run_or_show(vtab, dry_run, folder, request, options)


if __name__ == "__main__":
    transfers.define_flags("Folder of the run, with a transfer for each task.")
    flags.DEFINE_string("data", None, "The folder of TFDS, with cifar100, clevr and so on in it.")
    flags.DEFINE_list("tasks", [], "Only these, such as cifar100,clevr_count: without all means.")
    flags.DEFINE_list("leave_out", [], "All tasks but these, whose data are not there.")
    flags.mark_flag_as_required("data")
    flags.adopt_module_key_flags(sweeps)  # for --help
    flags.adopt_module_key_flags(transfers)
    command.run(main)
