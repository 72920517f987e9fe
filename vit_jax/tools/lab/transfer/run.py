"""Fine-tunes a model with tuned hyperparameters, without reading the test before the end:

    vit-jax transfer --checkpoint WEIGHTS --config configs/finetune.py:cifar10 \\
      --workdir runs/transfer --config.input.data_dir=data/cifar10 \\
      --config.optim.lr=0.001,0.003,0.01,0.03

Commas separate the values to choose from. Each is trained without a held-out part of the training
data and scored on that; the best is trained on all of it, once for each seed, and scored on the
test. --checkpoint=none does the same from scratch. The same command again goes on.
"""

import contextlib
import dataclasses
from typing import Any

from absl import flags
from etils import epath

from vit_jax import config as configs
from vit_jax import weights
from vit_jax.core import command
from vit_jax.core.errors import UserError
from vit_jax.core.tables import for_json
from vit_jax.store import checkpoint_dir, workdir, workdir_lock
from vit_jax.tools.lab.sweep import grid as grids
from vit_jax.tools.lab.sweep import progress
from vit_jax.tools.lab.sweep import run as sweeps
from vit_jax.tools.lab.sweep.grid import CONFIG, check_folder, format_values
from vit_jax.tools.lab.sweep.grid import FILE as SWEEP_FILE
from vit_jax.tools.lab.sweep.progress import PointProgress, count_of
from vit_jax.tools.lab.sweep.slots import SweepOptions
from vit_jax.tools.lab.transfer import results
from vit_jax.tools.lab.transfer import task as tasks
from vit_jax.tools.lab.transfer.results import Choice, TransferResult
from vit_jax.tools.lab.transfer.task import CHOOSE, FINAL, HELD_OUT, Splits, TransferTask, check_all

FILE = "transfer.json"
# What may not differ when a transfer goes on: the choice, or the test, would mean something else.
# The grids are kept, and compared, by the sweeps.
FIXED = [f.name for f in dataclasses.fields(TransferTask) if f.name not in ("grid", "seeds")]


def transfer(folder: epath.Path, task: TransferTask, options: SweepOptions) -> TransferResult:
    """Runs what is left of a transfer in its folder, and prints the result.

    The folder gets choose/ and final/, which are sweeps, choice.json, results.json, results.csv and
    results.html. Called again with the same task it goes on; a transfer that is complete is shown
    again. With one value of every field there is nothing to choose, and choose/ is left out.
    """
    tasks.check(task)
    record = _begin(folder, task)  # before anything is written
    splits, weights_from = Splits(**record["splits"]), record["weights"]
    task = task.with_fields(record["derived"])
    with workdir_lock.lock_for_process(folder):
        workdir.save_json(folder / FILE, record)
        chosen, choose_rows = _choose(folder, task, splits, weights_from, options)
        print(f"final    {count_of(task.seeds, 'training')} on {splits.final}, then the test")
        final = tasks.final_grid(task, splits, weights_from, chosen.chosen)
        rows = sweeps.sweep(folder / FINAL, final, options.for_part(FINAL)).rows
        c, tested = task.config.input, tasks.evaluation_of(task)
        test = task.config.evals[tested]
        source, data_dir = test.source or c.source, test.data_dir or c.data_dir
        result = TransferResult(
            task.checkpoint,
            weights_from,
            task.grid.common[CONFIG],
            splits,
            {"name": tested, "split": test.split, "source": source, "data_dir": data_dir},
            chosen,
            tasks.metric_key(task, tested),
            results.over_seeds(rows, tested),
            task.seeds,
            [*progress.failures(choose_rows, f"{CHOOSE}/"), *progress.failures(rows, f"{FINAL}/")],
        )
        every = {CHOOSE: choose_rows, FINAL: rows}
        page = results.page(folder.name, result, every)
        sweeps.save_results(folder, for_json(result), results.table(result, every), page)
        sweeps.show_results(folder, results.lines(result))
    return result


def dry_run(folder: epath.Path, task: TransferTask, options: SweepOptions) -> None:
    tasks.check(task)
    task = task.with_fields(task.derived_fields())
    weights_from = pin_checkpoint(task.checkpoint)
    splits, _ = check_all(task, weights_from, folder)
    if task.grid.axes:
        grid = tasks.choose_grid(task, splits, weights_from)
        sweeps.dry_run(folder / CHOOSE, grid, options.for_part(CHOOSE))
        print("and then, with what is chosen in place of the first values:")
    first = task.grid.points()[0]
    final = tasks.final_grid(task, splits, weights_from, first)
    sweeps.dry_run(folder / FINAL, final, options.for_part(FINAL))


def _begin(folder: epath.Path, task: TransferTask) -> dict[str, Any]:
    check_folder(folder, "transfer")
    fixed = {field: getattr(task, field) for field in FIXED}
    kept = workdir.read_json(
        folder / FILE, _validate, "Move it away, and give the same command again."
    )
    if kept:
        grids.check_same(folder, "transfer", {f: kept["task"].get(f) for f in fixed}, fixed)
    derived = kept["derived"] if kept else task.derived_fields()
    task = task.with_fields(derived)
    if kept and _is_complete(folder, task, Splits(**kept["splits"]), kept["weights"]):
        return kept
    weights_from = kept["weights"] if kept else pin_checkpoint(task.checkpoint)
    splits, notes = check_all(task, weights_from, folder)
    if kept:
        grids.check_same(folder, "transfer", kept["splits"], splits._asdict())
    print(f"weights  {weights_from or 'none: from scratch'}")
    run = epath.Path(weights_from or "").parent.parent
    if weights_from and workdir_lock.is_locked(run):
        rule = "deletes this checkpoint once it has newer ones: give a copy of the folder"
        notes = [*notes, f"{run} is still trained, and {rule}"]
    for note in notes:
        print(f"note     {note}")
    record = {"task": fixed, "splits": splits._asdict(), "weights": weights_from}
    return kept or record | {"derived": derived}


def _validate(document: dict[str, Any]) -> dict[str, Any]:
    Splits(**document["splits"]), dict(document["task"]), document["weights"]
    return {**document, "derived": dict(document.get("derived", {}))}


def pin_checkpoint(checkpoint: str) -> str | None:
    """Resolves a checkpoint: to the step's folder of a work directory, or a pinned download."""
    if checkpoint.lower() == tasks.NO_CHECKPOINT:
        return None
    if weights.is_name(checkpoint):
        return str(weights.fetch(checkpoint))
    path = epath.Path(checkpoint).expanduser()
    if not weights.is_external(path):
        with contextlib.suppress(UserError):  # reported with all other errors
            return str(checkpoint_dir.find(path))
    return checkpoint


def _choose(
    folder: epath.Path,
    task: TransferTask,
    splits: Splits,
    weights_from: str | None,
    options: SweepOptions,
) -> tuple[Choice, list[PointProgress]]:
    kept = results.read_choice(folder) if (folder / FINAL / SWEEP_FILE).exists() else None
    if kept and sorted(map(format_values, task.grid.points())) != sorted(
        format_values(each.values) for each in kept.candidates
    ):
        tried = "; ".join(format_values(each.values) for each in kept.candidates)
        rule = f"has chosen from other values already ({tried}), for the test."
        raise UserError(rule, field=str(folder), cure="For others give another --workdir.")
    by = tasks.metric_key(task, HELD_OUT)
    if not task.grid.axes:
        return Choice({}, by, None), []
    grid = tasks.choose_grid(task, splits, weights_from)
    print(
        f"choose   {count_of(len(grid.points()), 'training')} on {splits.choose}, scored on "
        f"{splits.held_out} by {task.metric}"
    )
    rows = sweeps.sweep(folder / CHOOSE, grid, options.for_part(CHOOSE)).rows
    now = results.choose(rows, by)
    if kept is None:
        workdir.save_json(folder / results.CHOICE_FILE, for_json(now))
    elif now.chosen != kept.chosen:
        print(
            f"note     {format_values(now.chosen)} would be chosen now, since a training was "
            "retried; the test stays with what was chosen before it."
        )
    return kept or now, rows


def _is_complete(
    folder: epath.Path, task: TransferTask, splits: Splits, weights_from: str | None
) -> bool:
    kept = results.read_choice(folder)
    if (kept is None and task.grid.axes) or not (folder / FINAL / SWEEP_FILE).exists():
        return False
    grid = tasks.final_grid(task, splits, weights_from, kept.chosen if kept else {})
    points = grids.add_points(folder / FINAL, grid)[1]
    return not progress.failures(progress.read_rows(points, folder / FINAL))


FLAGS = flags.FLAGS


def define_flags(workdir: str) -> None:
    """Defines the flags of every command that makes transfers; `workdir`: the help of that flag."""
    command.define_config(configs.fields)
    command.define_checkpoint(" Default: none.")
    flags.DEFINE_integer("seeds", 3, "Trainings for each test, whose mean is the result.", 1)
    flags.DEFINE_integer("choose_seeds", 1, "Trainings of each point to choose from.", 1)
    sweeps.define_flags(workdir, "Check everything, show the commands, and train nothing.")
    flags.mark_flag_as_required("checkpoint")


def main(_: list[str]) -> None:
    folder, options = sweeps.read_flags()
    task = TransferTask(**command.values("seeds", *FIXED), grid=sweeps.read_grid())
    sweeps.run_or_show(transfer, dry_run, folder, task, options)


if __name__ == "__main__":
    define_flags("Folder of the transfer, with all of its trainings.")
    about = "The part of the training split to choose by, a fraction or a number; default: 0.1."
    flags.DEFINE_float("held_out", None, about)
    flags.DEFINE_string("choose_split", None, "Instead of --held_out: what to train on meanwhile.")
    flags.DEFINE_string("held_out_split", None, "Instead of --held_out: what to choose by.")
    flags.DEFINE_string("evaluation", None, "The config's evaluation of the test, if it has more.")
    flags.DEFINE_string("metric", "accuracy", "The number of that evaluation to choose by.")
    flags.DEFINE_bool("ema", False, "Choose by the EMA of the weights.")
    flags.adopt_module_key_flags(sweeps)  # for --help
    command.run(main)
