"""Trains a grid of configs, whose axes are values separated by commas:

    vit-jax sweep --workdir=runs/lr --slots=2 -- --config configs/vit_digits.py \\
      --config.optim.lr=1e-3,3e-3 --config.seed=0,1,2

Arguments of vit_jax.train follow the --. Each point has a folder of its own below --workdir.
The same command again continues, and ends with the results: a table, results.csv, results.png.

--launcher="scripts/slurm.sh --nodes=1 --gpus=8" makes each point a job instead of a process here.
"""

import contextlib
import dataclasses
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from absl import flags
from etils import epath

from vit_jax.config import MeshConfig, RunConfig
from vit_jax.core import cloud, command
from vit_jax.core.errors import ErrorCollector, Preempted, UserError, nearest
from vit_jax.core.signals import StopRequest
from vit_jax.core.tables import csv_text
from vit_jax.draw import style
from vit_jax.learning.state import EMA_ENDING
from vit_jax.run.build import Run
from vit_jax.store import workdir, workdir_lock
from vit_jax.store.runs import RESERVED
from vit_jax.tools.lab.sweep import grid, picture, progress, slots
from vit_jax.tools.lab.sweep.grid import Point, SweepGrid
from vit_jax.tools.lab.sweep.progress import Live, PointProgress
from vit_jax.tools.lab.sweep.slots import Slots, SweepOptions

PNG_FILE = "results.png"
# Results of the commands that run sweeps, beside those of the sweeps themselves.
JSON_FILE, HTML_FILE = "results.json", "results.html"


class PartlyFailed(UserError):
    """A part has failed; the rest is done, and the results are written."""


class TrainingsFailed(PartlyFailed):
    """Some trainings did not finish; all others have, and the results are written.

    Attributes:
      reasons: why each of them did not, by name.
    """

    def __init__(self, folder: epath.Path, reasons: Mapping[str, str], count: str):
        super().__init__(
            f"{len(reasons)} of {count} did not finish:"
            + "".join(f"\n  {name}: {reason}" for name, reason in reasons.items())
            + f"\nlog.txt in the folder of each, below {folder}, has the rest. Correct the cause, "
            "then give the same command with --retry_failed."
        )
        self.reasons = reasons


def sweep(folder: epath.Path, requested: SweepGrid, options: SweepOptions) -> None:
    """Trains the points that have not ended, and prints the results of all.

    UserError for wrong grids, configs and folders, TrainingsFailed if a point failed; Preempted on
    a signal: trainings of this machine have saved.
    """
    all_points, requested_points = grid.add_points(folder, requested)
    if options.metric is not None:
        check_metric(options.metric, all_points)
    with workdir_lock.lock_for_process(folder), StopRequest() as stop:
        grid.write(folder, all_points, requested)
        live = Live(progress.read_rows(all_points, folder), options.metric)
        count = progress.count_of(len(requested_points))
        startable = ("waiting", "failed") if options.retry_failed else ("waiting",)
        to_do = [point for point in requested_points if live.rows[point.number].state in startable]
        states = [live.rows[point.number].state for point in requested_points]
        begun = sum(live.rows[point.number].step > 0 for point in to_do)
        live.say(
            f"sweep    {count}: {states.count('finished')} finished, "
            f"{states.count('failed')} failed, {len(to_do)} to do"
            + (f" ({begun} of them begun)" if begun else "")
            + (f", {options.slots} at a time" if to_do else "")
        )
        try:
            if options.launcher is None:
                Slots(live, options).run(folder, to_do, stop)
            elif not slots.launch(live, folder, to_do, options, stop):
                return
        finally:
            live.close()
        rows = progress.read_rows(all_points, folder)
        rows_wanted = [row for row in rows if row.point in requested_points]
        if stop:
            finished = [row.state for row in rows_wanted].count("finished")
            others = (
                "the trainings that it stopped have saved"
                if options.launcher is None
                else "the jobs continue"
            )
            raise Preempted(
                f"Stopped by {stop}; {finished} of {count} finished, and "
                f"{others}. Start the same command again to continue."
            )
        _show(live, folder, rows, options.metric)
    if failed := [row for row in rows_wanted if row.state != "finished"]:
        reasons = {row.point.name: row.reason or row.state for row in failed}
        raise TrainingsFailed(folder, reasons, count)


def dry_run(folder: epath.Path, requested: SweepGrid, options: SweepOptions) -> None:
    """Prints the command of every point."""
    for point in grid.add_points(folder, requested)[1]:
        if options.launcher is None:
            arguments = point.arguments(str(folder / point.name))
            print(shlex.join(["python", *options.trainer[1:], *arguments]))
        else:
            print(shlex.join(slots.job(point, folder, options)))


def _show(
    live: Live, folder: epath.Path, rows: Sequence[PointProgress], metric: str | None
) -> None:
    metric = metric or progress.choose_metric(rows)
    known = sorted({key for row in rows for key in row.numbers})
    if known and metric not in known:
        raise UserError(f"--metric={metric}: no point has it. There are: {', '.join(known)}.")
    axes, keys = list(rows[0].point.values), progress.evaluation_keys(rows)
    lines = progress.csv_lines(progress.sort_rows(rows, metric), axes, keys)
    workdir.save(folder / progress.CSV_FILE, csv_text(lines))
    for shown in (progress.result_table(rows, metric), progress.seed_table(rows, metric)):
        if shown:
            live.say("\n" + "\n".join(shown))
    live.say(f"\nsaved    {folder / progress.CSV_FILE}")
    axis, curves = picture.curves(rows, metric)
    if curves:
        workdir.save(folder / PNG_FILE, style.png(picture.draw(axis, curves, metric)))
        live.say(f"saved    {folder / PNG_FILE}")


def check_metric(metric: str, points: Sequence[Point]) -> None:
    """Raises UserError if no training will log such a number."""
    known = {
        f"{name}/{number}"
        for point in points
        for name, numbers in grid.evaluation_numbers(point.load()).items()
        for number in numbers
    } | {progress.LOSS}
    of_training = metric.partition("/")[0] in RESERVED  # what else these log is not known before
    if not of_training and metric.replace(f"{EMA_ENDING}/", "/") not in known:
        raise UserError(f"--metric={metric}: no point has it. {nearest(metric, known)}")


def check_values(requested: SweepGrid, folder: epath.Path, errors: ErrorCollector) -> None:
    """Collects the errors of every value of every axis, with the first values of the others.

    Mesh and devices are left to the trainings, which may be elsewhere.
    """
    first = requested.points()[0]
    others = [{f: value} for f, values in requested.axes.items() for value in values[1:]]
    for values in [first, *(first | other for other in others)]:
        check_config(requested.load(values), folder, errors)


def check_config(config: RunConfig, folder: epath.Path, errors: ErrorCollector) -> None:
    """Collects the errors of a training, whose devices may be others than these."""
    Run.attempt(dataclasses.replace(config, mesh=MeshConfig()), folder, errors)


def save_results(
    folder: epath.Path, document: Any, table: Sequence[Sequence[Any]], page: str
) -> None:
    """Writes results.json, results.csv and results.html. UserError if it cannot."""
    workdir.save_json(folder / JSON_FILE, document)
    workdir.save(folder / progress.CSV_FILE, csv_text(table))
    workdir.save(folder / HTML_FILE, page)


def use_cpu_only() -> None:
    """Leaves accelerators to the trainings: this process computes shapes on the CPU."""
    jax.config.update("jax_platforms", "cpu")


# The command, and what those that run sweeps share with it.
FLAGS = flags.FLAGS
SHARED = ("slots", "launcher", "slot_variable", "max_restarts", "retry_failed")


def define_flags(workdir: str, dry_run: str, *, json: bool = True) -> None:
    """Defines the flags of every command that runs sweeps; `workdir` and `dry_run` are helps."""
    default = SweepOptions()
    flags.DEFINE_string("workdir", None, workdir)
    flags.DEFINE_bool("dry_run", False, dry_run)
    flags.mark_flag_as_required("workdir")
    if json:
        flags.DEFINE_bool("json", False, "Print the results as one JSON object.")
    flags.DEFINE_integer(
        "slots", default.slots, "Number of trainings, or launchers, at a time.", lower_bound=1
    )
    flags.DEFINE_string(
        "launcher",
        default.launcher,
        'Gives each training to this command, such as "scripts/slurm.sh --nodes=1 --gpus=8", as a '
        "job of its own; default: trains on this machine.",
    )
    flags.DEFINE_string(
        "slot_variable",
        default.slot_variable,
        "Environment variable that gets the slot's number, from 0, or one of the values that it "
        "lists already: CUDA_VISIBLE_DEVICES gives each training a GPU of its own.",
    )
    flags.DEFINE_integer(
        "max_restarts",
        default.max_restarts,
        "How often in a row a training is restarted without a newer checkpoint.",
        lower_bound=0,
    )
    flags.DEFINE_bool(
        "retry_failed", default.retry_failed, "Start trainings that have failed again."
    )


def read_flags(advice: str) -> tuple[epath.Path, SweepOptions]:
    """Returns the folder and options of the flags; `advice` says what --workdir should be.

    UserError if they are wrong.
    """
    if not FLAGS.workdir:
        raise UserError(f"--workdir is empty: {advice}.")
    name = os.path.basename(os.path.normpath(FLAGS.workdir))
    shared: dict[str, Any] = {field: FLAGS[field].value for field in SHARED}
    options = SweepOptions(name, **shared)
    if options.launcher is None:  # before a folder is made
        slots.slot_values(options)
    else:
        slots.launcher_words(options.launcher)
    return workdir.named(FLAGS.workdir), options


def check_workdir(folder: epath.Path) -> None:
    """Raises UserError if trainings of this machine would be in a folder that is not on it."""
    if cloud.is_remote(folder) and FLAGS.launcher is None:
        raise UserError(
            f"--workdir={folder}: trainings of this machine need a folder on it, where their logs "
            "and locks can be. Jobs (--launcher) need none."
        )


def run_or_show(
    run: Callable[..., object], show: Callable[..., None], folder: epath.Path, *arguments: Any
) -> None:
    """Calls `run`, or `show` with --dry_run; with --json prints results.json and nothing else."""
    check_workdir(folder)  # also where it would only show them: it says whether all is right
    failed = None
    with contextlib.redirect_stdout(sys.stderr) if FLAGS.json else contextlib.nullcontext():
        if FLAGS.dry_run:
            show(folder, *arguments)
            return
        try:
            run(folder, *arguments)
        except PartlyFailed as error:
            failed = error
    if FLAGS.json:
        print((folder / JSON_FILE).read_text(), end="")
    if failed:
        raise failed


def main(arguments: list[str]) -> None:
    """The command."""
    folder, options = read_flags("give the sweep a folder of its own, such as runs/lr")
    requested = grid.parse(arguments)._replace(launched=options.launcher is not None)
    options = options._replace(
        name=FLAGS.name or options.name, follow=FLAGS.follow, metric=FLAGS.metric
    )
    if FLAGS.dry_run:
        dry_run(folder, requested, options)
    else:
        check_workdir(folder)
        sweep(folder, requested, options)


if __name__ == "__main__":
    flags.DEFINE_string("name", None, "Of jobs: NAME-1, NAME-2, ...; default: that of the folder.")
    define_flags(
        "Folder of the sweep, with one below it for each point.",
        "Show the command of every point, and start none.",
        json=False,
    )
    flags.DEFINE_bool("follow", True, "Wait until all jobs of --launcher have finished.")
    flags.DEFINE_string(
        "metric", None, "To sort by, such as test/accuracy; default: by what was evaluated."
    )
    command.run(main, positional=True, hint='Arguments of vit_jax.train follow " -- ".')
