"""A transfer from top to bottom: check, choose on a held-out part, train on all, score the test."""

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from etils import epath

from vit_jax import weights
from vit_jax.core.errors import UserError
from vit_jax.core.files import parse_json, write_text
from vit_jax.store import checkpoint_dir, workdir, workdir_lock
from vit_jax.tools.lab.sweep import definition, progress
from vit_jax.tools.lab.sweep import run as sweeps
from vit_jax.tools.lab.sweep.grid import SweepGrid
from vit_jax.tools.lab.sweep.options import SweepOptions
from vit_jax.tools.lab.sweep.progress import PointProgress
from vit_jax.tools.lab.sweep.run import PointsFailed
from vit_jax.tools.lab.transfer import choice as choices
from vit_jax.tools.lab.transfer import held_out, page, results
from vit_jax.tools.lab.transfer import task as tasks
from vit_jax.tools.lab.transfer.choice import Choice
from vit_jax.tools.lab.transfer.results import TransferResult
from vit_jax.tools.lab.transfer.task import HELD_OUT, NO_CHECKPOINT, Splits, TransferTask

FILE = "transfer.json"
CHOOSE, FINAL = "choose", "final"
# What may not differ when a transfer goes on: the choice, or the test, would mean something else.
# The grids are kept, and compared, by the sweeps.
FIXED = (
    "checkpoint", "held_out", "choose_split", "held_out_split", "evaluation", "metric", "ema",
    "choose_seeds",
)  # fmt: skip

Say = Callable[[str], None]


class TrainingsFailed(UserError):
    """Some trainings did not finish; all others have.

    Attributes:
      result: what there is; it is written.
    """

    def __init__(self, message: str, result: TransferResult):
        super().__init__(message)
        self.result = result


def transfer(
    folder: epath.Path,
    task: TransferTask,
    options: SweepOptions,
    *,
    trainer: Sequence[str] = (sys.executable, *sweeps.TRAIN),
    say: Say = print,
) -> TransferResult:
    """Does what is left to do of a transfer in its folder, and shows the result.

    The folder gets choose/ and final/, which are sweeps, choice.json, results.json, results.csv and
    results.html. Called again with the same task it goes on; a transfer that is complete is shown
    again. With one value of every field there is nothing to choose, and choose/ is left out.

    Raises:
      UserError: the task, data or weights are wrong, before any training; or nothing can be chosen,
        since all trainings for that have failed.
      TrainingsFailed: some have failed; all others are done, and the results written.
      Preempted: on a signal; what ran has saved.
    """
    tasks.check(task)
    begun = _begin(folder, task, say)  # before anything is written
    splits, weights_from = Splits(**begun["splits"]), begun["weights"]
    with workdir_lock.alone_in(folder):
        _keep(folder, begun)
        failures: list[str] = []
        chosen, choose_rows = _choose(
            folder, task, splits, weights_from, options, trainer, say, failures
        )
        final = tasks.final_grid(task, splits, weights_from, chosen.chosen)
        say(f"final    {_number(task.seeds, 'training')} on {splits.final}, then the test")
        _train(folder / FINAL, final, options, trainer, failures)
        rows = _look(folder / FINAL, final)
        config = tasks.base_config(task)
        tested = tasks.evaluation_of(task, config)
        test = config.evals[tested]
        result = TransferResult(
            task.checkpoint,
            weights_from,
            task.grid.common["config"],
            splits,
            {
                "name": tested,
                "split": test.split,
                "source": test.source or config.input.source,
                "data_dir": test.data_dir or config.input.data_dir,
            },
            chosen,
            tasks.key(task, tested),
            results.over_seeds(rows, tested),
            task.seeds,
            tuple(failures),
        )
        of_sweeps = {CHOOSE: choose_rows, FINAL: rows}
        results.write(folder, result, of_sweeps)
        page.write(folder, result, of_sweeps)
        for line in results.lines(result):
            say(line)
        say(f"saved    {folder / page.FILE}")
    if failures:
        raise TrainingsFailed(
            f"{_number(len(failures), 'training')} did not finish, the others did:"
            + "".join(f"\n  {failure}" for failure in failures)
            + f"\nlog.txt in the folder of each, below {folder}, has the rest. Mend it, then the "
            "same command with --retry_failed; what was chosen stays chosen.",
            result,
        )
    return result


def dry_run(folder: epath.Path, task: TransferTask, options: SweepOptions, say: Say) -> None:
    """Shows the commands of the trainings to choose by. UserError as `transfer` at its start."""
    tasks.check(task)
    weights_from = pinned(task.checkpoint)
    splits, _ = held_out.look(task, weights_from, folder)
    if task.grid.axes:
        sweeps.dry_run(folder / CHOOSE, tasks.choose_grid(task, splits, weights_from), options)
        say("and then, with what is chosen in place of the first values:")
    first = task.grid.points()[0]
    final = tasks.final_grid(task, splits, weights_from, first)
    sweeps.dry_run(folder / FINAL, final, options)


def _begin(folder: epath.Path, task: TransferTask, say: Say) -> dict[str, Any]:
    """The contents of transfer.json: as they are there, else of what was looked at now."""
    for file, what in ((workdir.CONFIG_FILE, "a training"), (definition.FILE, "a sweep")):
        if (folder / file).exists():
            raise UserError(f"{folder} belongs to {what}: give the transfer another --workdir.")
    asked = {field: getattr(task, field) for field in FIXED}
    there = _read(folder)
    if there:
        changes = [
            f"\n  {field}: {there['task'].get(field)!r} there, {value!r} here"
            for field, value in asked.items()
            if there["task"].get(field) != value
        ]
        if changes:
            raise UserError(
                f"{folder} belongs to another transfer:{''.join(changes)}\nGive another --workdir."
            )
        if _is_complete(folder, task, Splits(**there["splits"]), there["weights"]):
            return there
    weights_from = there["weights"] if there else pinned(task.checkpoint)
    splits, notes = held_out.look(task, weights_from, folder)
    if there and splits._asdict() != there["splits"]:
        raise UserError(
            f"{folder} began with other splits: {_spell(there['splits'])}; now they are "
            f"{_spell(splits._asdict())}. If the data have changed, give another --workdir."
        )
    say(f"weights  {weights_from or 'none: from scratch'}")
    for note in notes:
        say(f"note     {note}")
    return there or {"task": asked, "splits": splits._asdict(), "weights": weights_from}


def _keep(folder: epath.Path, begun: dict[str, Any]) -> None:
    """Writes transfer.json. UserError if it cannot."""
    try:
        write_text(folder / FILE, json.dumps(begun, indent=2) + "\n")
    except OSError as error:
        raise workdir.unwritable(folder, error) from error


def _read(folder: epath.Path) -> dict[str, Any]:
    """The contents of transfer.json; {} if there is none. UserError if it is damaged."""
    try:
        document = parse_json((folder / FILE).read_bytes())
        Splits(**document["splits"]), dict(document["task"]), document["weights"]
        return dict(document)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{folder / FILE} is damaged ({error}). Delete it, and give the same command again."
        ) from error


def pinned(checkpoint: str) -> str | None:
    """What a checkpoint means now: the step's folder of a work directory, a name with its pin."""
    if checkpoint.lower() == NO_CHECKPOINT:
        return None
    if weights.is_name(checkpoint):
        return str(weights.fetch(checkpoint))
    path = epath.Path(checkpoint).expanduser()
    if not path.exists() or weights.is_external(path):
        return checkpoint  # one that is not there is reported with all other errors
    return str(checkpoint_dir.find(path))


def _choose(
    folder: epath.Path,
    task: TransferTask,
    splits: Splits,
    weights_from: str | None,
    options: SweepOptions,
    trainer: Sequence[str],
    say: Say,
    failures: list[str],
) -> tuple[Choice, list[PointProgress]]:
    """The choice, and the trainings that led to it; their failures are added."""
    key = tasks.key(task, HELD_OUT)
    if not task.grid.axes:
        return Choice({}, key, None), []
    grid = tasks.choose_grid(task, splits, weights_from)
    kept = choices.read(folder) if (folder / FINAL / definition.FILE).exists() else None
    if kept and sorted(map(_spell, task.grid.points())) != sorted(
        _spell(each.values) for each in kept.candidates
    ):
        tried = "; ".join(_spell(each.values) for each in kept.candidates)
        raise UserError(
            f"{folder} has chosen from other values already ({tried}), and trains, or has trained, "
            "for the test with them. For a choice from these give another --workdir."
        )
    say(
        f"choose   {_number(len(grid.points()), 'training')} on {splits.choose}, scored on "
        f"{splits.held_out} by {task.metric}"
    )
    _train(folder / CHOOSE, grid, options, trainer, failures)
    rows = _look(folder / CHOOSE, grid)
    now = choices.choose(rows, key)
    if kept is None:
        choices.write(folder, now)
    elif now.chosen != kept.chosen:
        say(
            f"note     {_spell(now.chosen)} would be chosen now, since a training was retried; "
            "the test stays with what was chosen before it."
        )
    return kept or now, rows


def _train(
    folder: epath.Path,
    grid: SweepGrid,
    options: SweepOptions,
    trainer: Sequence[str],
    failures: list[str],
) -> None:
    """Trains what has not ended of a sweep; its failures are added."""
    name = f"{options.name}-{folder.name}"
    try:
        sweeps.sweep(folder, grid, options._replace(name=name), trainer)
    except PointsFailed as error:
        failures += [f"{folder.name}/{point}: {reason}" for point, reason in error.reasons.items()]


def _look(folder: epath.Path, grid: SweepGrid) -> list[PointProgress]:
    """How the points of a sweep are."""
    wanted = definition.points(folder, grid)[1]
    return [progress.look(point, folder / point.name) for point in wanted]


def _is_complete(
    folder: epath.Path, task: TransferTask, splits: Splits, weights_from: str | None
) -> bool:
    """Whether all trainings for the test have finished: then nothing needs to be looked at."""
    kept = choices.read(folder)
    if kept is None and task.grid.axes:
        return False
    grid = tasks.final_grid(task, splits, weights_from, kept.chosen if kept else {})
    if not (folder / FINAL / definition.FILE).exists():
        return False
    return all(row.state == "finished" for row in _look(folder / FINAL, grid))


def _spell(values: dict[str, str]) -> str:
    return ", ".join(f"{field}={value}" for field, value in values.items())


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
