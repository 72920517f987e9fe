"""Trains a grid of configs: values separated by commas are its axes. For scripts/sweep.sh:

    scripts/sweep.sh --workdir=runs/lr --slots=2 -- --config configs/vit_digits.py \\
      --config.optim.lr=1e-3,3e-3 --config.seed=0,1,2

Arguments of vit_jax.train follow the --. Each point has a folder of its own below --workdir.
The same command again continues, and ends with the results: a table, results.csv, results.png.

--launcher="scripts/slurm.sh --nodes=1 --gpus=8" makes each point a job instead of a process here.
"""

import os
import shlex
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

from absl import flags
from etils import epath

from vit_jax.core import command
from vit_jax.core.errors import Preempted, UserError
from vit_jax.core.signals import StopRequest
from vit_jax.store import workdir_lock
from vit_jax.sweep import definition, grid, jobs, picture, progress, results
from vit_jax.sweep.grid import Point
from vit_jax.sweep.live import Live
from vit_jax.sweep.progress import PointProgress
from vit_jax.sweep.slots import Slots, Task

TRAIN = ("-m", "vit_jax.train")
FOLLOW_SECS = 5.0  # between looks at work directories that jobs write to


class Options(NamedTuple):
    """The values of the flags."""

    name: str = "sweep"
    slots: int = 1
    launcher: str | None = None
    follow: bool = True
    metric: str | None = None
    retry_failed: bool = False
    slot_variable: str | None = None
    max_restarts: int = 5


def sweep(
    folder: epath.Path,
    asked: grid.Grid,
    options: Options,
    trainer: Sequence[str] = (sys.executable, *TRAIN),
) -> None:
    """Trains the points that have not ended, and shows the results of all.

    Raises:
      UserError: grid, configs or folder are wrong; or a point failed.
      Preempted: a signal arrived; trainings of this machine have saved.
    """
    every, wanted = definition.points(folder, asked)
    with workdir_lock.alone_in(folder), StopRequest() as stop:
        definition.write(folder, every, asked)
        live = Live({p.number: progress.look(p, folder / p.name) for p in every}, options.metric)
        again = ("waiting", "failed") if options.retry_failed else ("waiting",)
        to_do = [point for point in wanted if live.rows[point.number].state in again]
        _announce(live, wanted, to_do, options)
        try:
            if options.launcher is None:
                _train(live, folder, to_do, options, trainer, stop)
            elif not _launch(live, folder, to_do, options, stop):
                return
        finally:
            live.close()
        rows = {p.number: progress.look(p, folder / p.name) for p in every}
        if stop:
            raise Preempted(_stopped(str(stop), [rows[p.number] for p in wanted], options))
        _show(live, folder, list(rows.values()), options.metric)
    _tell_failures([rows[point.number] for point in wanted])


def dry_run(folder: epath.Path, asked: grid.Grid, options: Options) -> None:
    """Prints the command of every point."""
    for point in definition.points(folder, asked)[1]:
        place = str(folder / point.name)
        if options.launcher is None:
            print(shlex.join(["python", *TRAIN, *point.arguments(place)]))
        else:
            print(shlex.join(jobs.job(point, place, options.launcher, options.name).command))


def _train(
    live: Live,
    folder: epath.Path,
    to_do: Sequence[Point],
    options: Options,
    trainer: Sequence[str],
    stop: StopRequest,
) -> None:
    """Trains in slots of this machine."""
    slots = Slots(
        options.slots,
        done=lambda task: progress.look(task.point, task.folder).state == "finished",
        tell=lambda task, what, why: live.tell(task.point, what, why),
        variable=options.slot_variable,
        max_restarts=options.max_restarts,
    )
    tasks = []
    for point in to_do:
        place = folder / point.name
        tasks.append(Task(point, place, [*trainer, *point.arguments(str(place))]))
    for _ in slots.run(tasks, stop):
        live.refresh(slots.running)


def _launch(
    live: Live, folder: epath.Path, to_do: Sequence[Point], options: Options, stop: StopRequest
) -> bool:
    """Launches jobs and follows them; False if they are not followed. UserError if one fails."""
    failed: dict[str, str] = {}
    launched: set[str] = set()

    def tell(point: Point, what: str, why: str) -> None:
        live.tell(point, what, why)
        if what == "failed":
            failed[point.name] = why
        else:
            launched.add(point.name)

    launcher = options.launcher or ""
    to_launch = [
        jobs.job(point, str(folder / point.name), launcher, options.name) for point in to_do
    ]
    for _ in jobs.launch(to_launch, options.slots, stop, tell):
        live.refresh((), launched)
    looked = 0.0
    while options.follow and launched and not stop:
        live.refresh((), launched)
        if time.monotonic() - looked > FOLLOW_SECS:
            looked = time.monotonic()
            ended = {row.point.name for row in live.look_at(launched) if row.state == "finished"}
            launched -= ended
        time.sleep(jobs.POLL_SECS)
    if failed and not stop:
        raise UserError(
            f"The launcher failed for {len(failed)} of {len(to_do)} points:"
            + "".join(f"\n  {name}: {why}" for name, why in failed.items())
            + "\nThe same command launches them again."
        )
    if not options.follow and not stop:
        live.say("All jobs are launched. The same command without --nofollow shows how they are.")
    return options.follow


def _announce(
    live: Live, wanted: Sequence[Point], to_do: Sequence[Point], options: Options
) -> None:
    states = [live.rows[point.number].state for point in wanted]
    begun = sum(live.rows[point.number].step > 0 for point in to_do)
    live.say(
        f"sweep    {len(wanted)} points: {states.count('finished')} finished, "
        f"{states.count('failed')} failed, {len(to_do)} to do"
        + (f" ({begun} of them begun)" if begun else "")
        + (f", {options.slots} at a time" if to_do else "")
    )


def _stopped(signal_name: str, rows: Sequence[PointProgress], options: Options) -> str:
    states = [row.state for row in rows]
    others = "those that ran have saved" if options.launcher is None else "the jobs go on"
    return (
        f"Stopped by {signal_name}; {states.count('finished')} of {len(rows)} points are "
        f"finished, and {others}. Start the same command again to go on."
    )


def _show(
    live: Live, folder: epath.Path, rows: Sequence[PointProgress], metric: str | None
) -> None:
    """Shows the results on the screen and writes them to files."""
    metric = metric or progress.choose_metric(rows)
    known = sorted({key for row in rows for key in row.numbers})
    if known and metric not in known:
        raise UserError(f"--metric={metric}: no point has it. There are: {', '.join(known)}.")
    results.write_csv(folder / results.CSV_FILE, rows, metric)
    drawn = picture.write(folder / picture.PNG_FILE, rows, metric)
    for lines in (results.table(rows, metric), results.over_seeds(rows, metric)):
        if lines:
            live.say("\n" + "\n".join(lines))
    live.say(f"\nsaved    {folder / results.CSV_FILE}")
    if drawn:
        live.say(f"saved    {folder / picture.PNG_FILE}")


def _tell_failures(rows: Sequence[PointProgress]) -> None:
    failed = [row for row in rows if row.state != "finished"]
    if failed:
        raise UserError(
            f"{len(failed)} of {len(rows)} points did not finish:"
            + "".join(f"\n  {row.point.name}: {row.reason or row.state}" for row in failed)
            + "\nlog.txt in the folder of each has the rest. Mend it, then the same command with "
            "--retry_failed."
        )


FLAGS = flags.FLAGS


def main(arguments: list[str]) -> None:
    """The command."""
    if not FLAGS.workdir:
        raise UserError("--workdir is empty: give the sweep a folder of its own, such as runs/lr.")
    if FLAGS.launcher is not None:
        jobs.command(FLAGS.launcher)  # before a folder is made
    folder = epath.Path(FLAGS.workdir).expanduser()
    asked = grid.parse(arguments)
    options = Options(
        name=FLAGS.name or os.path.basename(os.path.normpath(FLAGS.workdir)),
        slots=FLAGS.slots,
        launcher=FLAGS.launcher,
        follow=FLAGS.follow,
        metric=FLAGS.metric,
        retry_failed=FLAGS.retry_failed,
        slot_variable=FLAGS.slot_variable,
        max_restarts=FLAGS.max_restarts,
    )
    if FLAGS.dry_run:
        dry_run(folder, asked, options)
        return
    if "://" in str(folder) and options.launcher is None:
        raise UserError(
            f"--workdir={folder}: trainings of this machine need a folder on it, where their logs "
            "and locks can be. Jobs (--launcher) need none."
        )
    sweep(folder, asked, options)


if __name__ == "__main__":
    flags.DEFINE_string("workdir", None, "Folder of the sweep, with one below it for each point.")
    flags.DEFINE_string("name", None, "Of jobs: NAME-1, NAME-2, ...; default: that of the folder.")
    flags.DEFINE_integer("slots", 1, "So many trainings, or launchers, at a time.", lower_bound=1)
    flags.DEFINE_string(
        "launcher",
        None,
        'Gives each point to this command, such as "scripts/slurm.sh --nodes=1 --gpus=8", as a job '
        "of its own; default: trains on this machine.",
    )
    flags.DEFINE_bool("follow", True, "Wait until all jobs of --launcher have finished.")
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
        "max_restarts",
        5,
        "So often in a row a training is started again without a newer checkpoint.",
        lower_bound=0,
    )
    flags.DEFINE_bool("retry_failed", False, "Start points that have failed again.")
    flags.DEFINE_bool("dry_run", False, "Show the command of every point, and start none.")
    flags.mark_flag_as_required("workdir")
    command.run(main, 'Arguments of vit_jax.train follow " -- ".')
