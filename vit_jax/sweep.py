"""Trains a grid of configs: values separated by commas are its axes. For scripts/sweep.sh:

    scripts/sweep.sh --workdir=runs/lr --slots=2 -- --config configs/vit_digits.py \\
      --config.optim.lr=1e-3,3e-3 --config.seed=0,1,2

Behind the -- stands what vit_jax.train gets. Each point has a folder of its own below --workdir.
The same command again goes on, and at the end shows the results: a table and results.csv.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from typing import NamedTuple

from absl import flags
from etils import epath

from vit_jax.core import command
from vit_jax.core.errors import Preempted, UserError
from vit_jax.core.stop import StopRequest
from vit_jax.screen import Screen
from vit_jax.store import workdir_lock
from vit_jax.sweeping import definition, grid, progress, results
from vit_jax.sweeping.grid import Point
from vit_jax.sweeping.progress import Progress
from vit_jax.sweeping.slots import Slots, Task

TRAIN = ("-m", "vit_jax.train")


class Options(NamedTuple):
    """What the flags say."""

    slots: int = 1
    metric: str | None = None
    retry_failed: bool = False
    slot_variable: str | None = None
    max_restarts: int = 5


def sweep(
    folder: epath.Path,
    asked: grid.Grid,
    options: Options,
    screen: Screen,
    trainer: Sequence[str] = (sys.executable, *TRAIN),
) -> None:
    """Trains the points that have not ended, and shows how all ended.

    Raises:
      UserError: grid, configs or folder are not right; or a point failed.
      Preempted: a signal came, and the trainings have saved.
    """
    every, wanted = definition.points(folder, asked)
    with workdir_lock.alone_in(folder), StopRequest() as stop:
        definition.write(folder, every, asked)
        rows = {point.number: progress.look(point, folder / point.name) for point in every}
        again = ("waiting", "failed") if options.retry_failed else ("waiting",)
        to_do = [point for point in wanted if rows[point.number].state in again]
        _announce(screen, rows, wanted, to_do, options)
        tasks = [_task(point, folder, trainer) for point in to_do]
        slots = Slots(
            options.slots,
            done=lambda task: progress.look(task.point, task.folder).state == "finished",
            tell=lambda task, what, why: _tell(screen, task, what, why),
            variable=options.slot_variable,
            max_restarts=options.max_restarts,
        )
        for _ in slots.run(tasks, stop):
            pass
        rows = {point.number: progress.look(point, folder / point.name) for point in every}
        if stop:
            raise Preempted(_stopped(str(stop), rows, wanted))
        _show(screen, folder, list(rows.values()), options.metric)
    failed = [rows[p.number] for p in wanted if rows[p.number].state != "finished"]
    if failed:
        raise UserError(
            f"{len(failed)} of {len(wanted)} points did not finish:"
            + "".join(f"\n  {row.point.name}: {row.reason or row.state}" for row in failed)
            + "\nThe whole story is in log.txt of each. Mend it, then the same command with "
            "--retry_failed."
        )


def dry_run(folder: epath.Path, asked: grid.Grid) -> None:
    """Prints the command of every point."""
    for point in definition.points(folder, asked)[1]:
        words = [*TRAIN, *point.arguments(str(folder / point.name))]
        print(f"python {shlex.join(words)}")


def _task(point: Point, folder: epath.Path, trainer: Sequence[str]) -> Task:
    place = folder / point.name
    return Task(point, place, [*trainer, *point.arguments(str(place))])


def _announce(
    screen: Screen,
    rows: dict[int, Progress],
    wanted: Sequence[Point],
    to_do: Sequence[Point],
    options: Options,
) -> None:
    states = [rows[point.number].state for point in wanted]
    begun = sum(rows[point.number].step > 0 for point in to_do)
    screen.say(
        f"sweep    {len(wanted)} points: {states.count('finished')} finished, "
        f"{states.count('failed')} failed, {len(to_do)} to do"
        + (f" ({begun} of them begun)" if begun else "")
        + (f", {options.slots} at a time" if to_do else "")
    )


def _tell(screen: Screen, task: Task, what: str, why: str) -> None:
    screen.say(f"{what:8} {task.point.name}{f': {why}' if why else ''}")


def _stopped(signal_name: str, rows: dict[int, Progress], wanted: Sequence[Point]) -> str:
    states = [rows[point.number].state for point in wanted]
    return (
        f"Stopped by {signal_name}; {states.count('finished')} of {len(wanted)} points are "
        "finished, and those that ran have saved. Start the same command again to go on."
    )


def _show(screen: Screen, folder: epath.Path, rows: Sequence[Progress], metric: str | None) -> None:
    metric = metric or progress.choose_metric(rows)
    known = sorted({key for row in rows for key in row.numbers})
    if known and metric not in known:
        raise UserError(f"--metric={metric}: no point has it. There are: {', '.join(known)}.")
    results.write_csv(folder / results.CSV_FILE, rows, metric)
    for lines in (results.table(rows, metric), results.over_seeds(rows, metric)):
        if lines:
            screen.say()
        for line in lines:
            screen.say(line)
    screen.say()
    screen.say(f"saved    {folder / results.CSV_FILE}")


FLAGS = flags.FLAGS


def main(arguments: list[str]) -> None:
    """The command."""
    folder = epath.Path(FLAGS.workdir).expanduser()
    asked = grid.parse(arguments)
    if FLAGS.dry_run:
        dry_run(folder, asked)
        return
    if "://" in str(folder):
        raise UserError(
            f"--workdir={folder}: trainings of this machine need a folder on it, where their logs "
            "and locks can be."
        )
    options = Options(
        slots=FLAGS.slots,
        metric=FLAGS.metric,
        retry_failed=FLAGS.retry_failed,
        slot_variable=FLAGS.slot_variable,
        max_restarts=FLAGS.max_restarts,
    )
    sweep(folder, asked, options, Screen())


if __name__ == "__main__":
    flags.DEFINE_string("workdir", None, "Folder of the sweep, with one below it for each point.")
    flags.DEFINE_integer("slots", 1, "So many trainings at a time.", lower_bound=1)
    flags.DEFINE_string(
        "slot_variable",
        None,
        "Environment variable that gets the slot's number, from 0: CUDA_VISIBLE_DEVICES gives each "
        "training a GPU of its own.",
    )
    flags.DEFINE_string(
        "metric", None, "To sort by, such as test/accuracy; default: by what was evaluated."
    )
    flags.DEFINE_integer(
        "max_restarts", 5, "So often in a row without a newer checkpoint.", lower_bound=0
    )
    flags.DEFINE_bool("retry_failed", False, "Start points that have failed again.")
    flags.DEFINE_bool("dry_run", False, "Show the command of every point, and start none.")
    flags.mark_flag_as_required("workdir")
    command.run(main)
